"""Subclasses of TRL's classes, whose overrides are called or refused, and TRL's reward functions by their numbers."""

import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import HfArgumentParser, Trainer

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.compat.trl import GRPOConfig, GRPOTrainer, rewards
from oncurve.compat.trl.grpo_trainer import FREE, NOT_CALLED, OWN


@dataclass
class Arguments(GRPOConfig):
    benchmarks: list[str] = field(default_factory=list)
    system_prompt: str | None = field(default=None, metadata={"help": "of the chat"})
    learning_rate: float = 5e-6
    num_completions_to_print: int = 0


@dataclass
class More(Arguments):
    doubled: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.doubled *= 2
        self.beta = 0.1


def test_a_dataclass_adds_fields_and_changes_defaults() -> None:
    args = Arguments("out", system_prompt="be brief", max_steps=3)
    assert (args.benchmarks, args.system_prompt, args.learning_rate, args.max_steps) == ([], "be brief", 5e-6, 3)
    assert args.translated().settings["learner"]["learning_rate"] == 5e-6
    args.system_prompt, args.learning_rate = "be long", 1e-4
    again = dataclasses.replace(args, benchmarks=["math"])
    assert (again.system_prompt, again.learning_rate, again.benchmarks) == ("be long", 1e-4, ["math"])
    assert again != args == dataclasses.replace(args)
    more = More(output_dir="x")
    assert (more.doubled, more.beta, more.learning_rate) == (6, 0.1, 5e-6)
    with pytest.raises(ConfigError, match=r"sytem_prompt: TRL 1\.16 has no such setting"):
        args.sytem_prompt = ""
    with pytest.raises(ConfigError, match="repetition_penalty"):
        Arguments("out", repetition_penalty=0.9)


def test_a_parser_makes_a_subclass_of_words() -> None:
    def parsed(*words: str) -> Any:
        return HfArgumentParser(Arguments).parse_args_into_dataclasses(list(words), look_for_args_file=False)[0]

    args = parsed("--benchmarks", "a", "b", "--system_prompt", "s")
    assert (args.benchmarks, args.system_prompt, args.learning_rate) == (["a", "b"], "s", 5e-6)
    assert parsed("--learning_rate", "1e-6").learning_rate == 1e-6  # the default of the table, said


def test_a_setting_that_cannot_be_is_a_value_error_as_in_trl() -> None:
    with pytest.raises(ValueError, match="no whole groups"):
        GRPOConfig("out", num_generations=3)


def refusal(trainer: type[GRPOTrainer]) -> str:
    return message_of(ConfigError, trainer, "nowhere")


@pytest.mark.parametrize("name", ["compute_loss", "_generate_and_score_completions", "_get_train_sampler", "log"])
def test_an_override_that_would_not_be_called_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixin = type("Mixin", (), {name: lambda self: None})
    for made in (type("Own", (GRPOTrainer,), {name: None}), type("Mixed", (mixin, GRPOTrainer), {})):
        assert f"{made.__name__}: oncurve's loop does not call {name}, so" in refusal(made)
    monkeypatch.setattr(GRPOTrainer, name, None, raising=False)
    assert f"does not call {name}" in refusal(GRPOTrainer)
    with pytest.raises(ConfigError, match=f"does not call {name}"):
        setattr(GRPOTrainer.__new__(GRPOTrainer), name, None)


def test_what_trls_loop_calls_and_the_user_may_call_is_refused_too() -> None:
    assert "call evaluate, save_model" in refusal(
        type("Own", (GRPOTrainer,), {"evaluate": None, "save_model": None, "train": None})
    )


def test_helpers_of_a_subclass_are_its_own() -> None:
    made = type("Own", (GRPOTrainer,), {"score_again": None, "train": None, "_tag_names": ["mine"]})
    assert "reward_funcs: No reward source provided" in refusal(made)


def test_a_method_of_transformers_trainer_is_here_or_refused() -> None:
    assert {name for name in NOT_CALLED if hasattr(GRPOTrainer, name)} == set(OWN)
    assert all(hasattr(GRPOTrainer, name) and hasattr(Trainer, name) for name in FREE)


POSITIONAL = table("trl_subclasses", "positional")
"""The arguments of TRL 1.16's rewards in their order; with (), of the reward that a function returns."""


@pytest.mark.parametrize("name", POSITIONAL)
def test_a_reward_takes_its_arguments_in_trls_order(name: str) -> None:
    function = getattr(rewards, name.removesuffix("()"))
    made = function(*(() if "repetition" in name else (100, 20))) if name.endswith("()") else function
    parameters = [each.name for each in inspect.signature(made).parameters.values() if each.kind.name != "VAR_KEYWORD"]
    assert parameters[: len(POSITIONAL[name].split())] == POSITIONAL[name].split()


def test_the_cosine_of_positional_arguments_is_trls() -> None:
    pytest.importorskip("math_verify")
    reward = pickle.loads(pickle.dumps(rewards.get_cosine_scaled_reward(100)))  # noqa: S301 - our own
    assert reward.__name__ == "cosine_scaled_reward"
    completions = [[{"content": r"\boxed{\frac{1}{3}}"}], [{"content": r"\boxed{\frac{1}{2}}"}]]
    assert reward(completions, [r"\frac{1}{3}"] * 2, [[1] * 50] * 2) == pytest.approx([0.75, -0.75])


def test_the_punishments_are_those_of_trl() -> None:
    overlong = rewards.get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert overlong(completion_ids=[[1] * n for n in (80, 90, 100, 101)]) == [0.0, -0.5, -1.0, -1.0]
    assert rewards.get_soft_overlong_punishment(3, 0)(completion_ids=[[1] * 3, [1] * 4]) == [0.0, -1.0]
    assert rewards.get_repetition_penalty_reward(2)(completion_ids=[[1, 2, 3, 4], [5] * 5]) == [0.0, -0.75]


def test_the_masks_of_tokens_are_those_of_trl() -> None:
    """By the definitions: a share of the unmasked tokens by entropy; a negative advantage and a mean gap above 1."""
    entropies, mask = torch.arange(12.0).view(2, 6), torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    for threshold, first in ((0.0, 0), (0.5, 5), (0.8, 8), (1.0, 9)):
        expected = (torch.arange(12).view(2, 6) >= first) & mask.bool()
        assert torch.equal(GRPOTrainer.get_high_entropy_mask(Mock(), entropies, mask, threshold), expected)
    assert not GRPOTrainer.get_high_entropy_mask(Mock(), entropies, 0 * mask, 0.5).any()
    logps = torch.tensor([[-2.0, -2.0, -9.0], [-0.5, -0.5, 9.0], [-2.0, -2.0, 9.0]])
    seen = torch.tensor([[1.0, 1.0, 0.0]] * 3)
    for advantage, kept in ((-1.0, [0.0, 1.0, 0.0]), (1.0, [1.0] * 3)):
        found = GRPOTrainer.get_off_policy_mask(torch.full((3, 1), advantage), logps, 0 * logps, seen, 1.0)
        assert found.tolist() == [[each] for each in kept]
