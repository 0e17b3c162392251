"""`oncurve.GRPO`: an argument and its setting are one thing, what means nothing is refused; rlox's hooks, functions."""

import inspect
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import oncurve
from fakes.project import RECIPES, Command, refused
from fakes.tables import table
from fakes.tiny_policy import TinyLM
from oncurve.base.errors import ConfigError, DataError
from oncurve.compat.token_grpo import SETTING_OF, WITHOUT_MEANING
from oncurve.config import load_config
from oncurve.config.arguments import ArgumentError
from oncurve.config.sections import RUN
from oncurve.losses import KLPenalty

PROMPTS = torch.tensor([[1, 2, 3], [4, 5, 6]])
OTHER = table("rlox_api", "other")
USED = {"rollout", "engine", "advantage", "objective", "kl", "reference", "entropy", "aggregation", "filter"}
USED |= {"learner", "critic", "lora", "correction"}


def threes(completions: list[Tensor], prompts: Tensor) -> list[float]:
    return [float((ids == 3).double().mean()) for ids in completions]


def grpo(**arguments: Any) -> oncurve.GRPO:
    given = {"ref_model": TinyLM(seed=1), "reward_fn": threes, **arguments}
    return oncurve.GRPO(TinyLM(), **given)


def nested(name: str, value: Any) -> dict[str, Any]:
    section, key = SETTING_OF[name].split(".")
    return {section: {key: value}}


@pytest.mark.parametrize("name", SETTING_OF)
def test_an_argument_is_its_setting_and_both_are_refused(name: str) -> None:
    by_argument, by_setting = grpo(**{name: OTHER[name]}), grpo(settings=nested(name, OTHER[name]))
    assert by_argument.config == by_setting.config != grpo().config
    with pytest.raises(ConfigError, match=f"{SETTING_OF[name]}: given twice"):
        grpo(**{name: OTHER[name]}, settings=nested(name, OTHER[name]))


def test_a_single_end_token_that_is_no_list_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout.eos_ids: .*got 3"):
        grpo(eos_ids=3)


@pytest.mark.parametrize("token", [11, 2**40, -1])
def test_a_prompt_of_tokens_that_the_model_does_not_have_is_refused(token: int) -> None:
    trainer = grpo()
    with pytest.raises(DataError, match=f"prompt 1 holds the token id {token}; the model has ids from 0 to 10"):
        trainer.train(torch.tensor([[1, 2], [3, token]]))
    with pytest.raises(DataError, match="prompt 0"):
        trainer.evaluate(torch.tensor([[token, 1]]))


def test_what_is_left_out_is_the_presets_and_else_the_default() -> None:
    assert grpo(preset="dr_grpo").config.kl.coef == 0
    assert grpo(preset="dr_grpo").config.rollout.group_size == 4
    paper = grpo(preset="grpo_paper", group_size=2).config
    assert (paper.rollout.group_size, paper.rollout.max_new_tokens, paper.kl.coef) == (2, 1024, 0.04)
    assert grpo(preset="grpo").config == grpo().config
    assert grpo().config.kl.coef == 0.1
    whole = grpo(settings={"kl": KLPenalty(coef=0.3, estimator="k2")}).config
    assert (whole.kl.coef, whole.kl.estimator) == (0.3, "k2")


def test_a_reference_that_is_given_is_measured_against() -> None:
    by_settings = grpo(settings={"kl": {"coef": 0.1}}).train(PROMPTS)["kl"]
    assert by_settings == grpo(kl_coef=0.1).train(PROMPTS)["kl"] > 0
    assert grpo(kl_coef=0.0).train(PROMPTS)["kl"] > 0
    assert grpo(kl_coef=0.0, ref_model=None).train(PROMPTS)["kl"] == 0


def test_every_section_is_used_or_refused() -> None:
    refused = {key for key in WITHOUT_MEANING if "." not in key}
    assert USED | refused | {"run"} == set(RUN.names)
    assert {key.partition(".")[2] for key in WITHOUT_MEANING if key.startswith("run.")} | {"seed"} == set(
        RUN.sections["run"].kinds["RunSettings"].model_fields
    )


WITHOUT_EFFECT: list[dict[str, Any]] = table("rlox_api", "without_effect")


@pytest.mark.parametrize("settings", WITHOUT_EFFECT)
def test_a_setting_without_effect_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="set to no effect"):
        grpo(settings=settings)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    **table("rlox_api", "wrong"),
    "no hook": ({"callbacks": [object()]}, "none of the hooks on_training_start"),
    "no logger": ({"logger": print}, "on_train_step"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_had_is_refused_with_the_reason(what: str) -> None:
    arguments, words = WRONG[what]
    with pytest.raises(ConfigError, match=words):
        grpo(**arguments)


def test_minibatches_are_compared_with_the_prompts_there_are() -> None:
    many = grpo(settings={"learner": {"minibatches": 40}})
    with pytest.raises(ConfigError, match=r"40 minibatches.*2 prompts"):
        many.train(PROMPTS)


@pytest.mark.parametrize(("wrong", "words"), table("rlox_api", "names"))
def test_an_argument_of_another_name_is_answered(wrong: str, words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        grpo(**{wrong: 1})
    assert isinstance(caught.value, ArgumentError)


class Notes:
    """A callback and a logger as rlox's base classes are, which writes down what it hears."""

    def __init__(self, last: int = 99) -> None:
        self.heard: list[Any] = []
        self.last = last

    def on_training_start(self, **about: Any) -> None:
        self.heard.append("start")

    def on_step(self, **about: Any) -> bool:
        self.heard.append(("step", sorted(about), about["step"]))
        return bool(about["step"] < self.last)

    def on_train_batch(self, loss: float, mean_reward: float, kl: float) -> None:
        self.heard.append("batch")

    def on_training_end(self, **about: Any) -> None:
        self.heard.append("end")

    def on_train_step(self, step: int, metrics: dict[str, float]) -> None:
        self.heard.append((step, metrics["mean_reward"]))


def test_callbacks_and_logger_hear_what_rloxs_do() -> None:
    callback, logger = Notes(last=2), Notes()
    trainer = grpo(callbacks=[callback], logger=logger)
    metrics = trainer.train(PROMPTS, n_epochs=5)
    step = ["algo", "reward", "step"]
    assert callback.heard == ["start", "batch", ("step", step, 1), "batch", ("step", step, 2), "end"]
    assert [number for number, _ in logger.heard] == [1, 2]
    assert logger.heard[-1][1] == metrics["mean_reward"]


def test_a_callback_that_returns_nothing_does_not_end_the_training_and_every_one_is_told() -> None:
    class Silent:
        told = 0

        def on_step(self, **about: Any) -> None:
            self.told += 1

    silent, ends, last = Silent(), Notes(last=2), Silent()
    grpo(callbacks=[silent, ends, last]).train(PROMPTS, n_epochs=5)
    assert (silent.told, last.told) == (2, 2)


RLOX_1_2 = "model, ref_model, reward_fn, group_size=4, learning_rate=0.0001, kl_coef=0.1, max_new_tokens=8, callbacks=None, logger=None"  # noqa: E501


def test_the_arguments_stand_in_rloxs_order() -> None:
    ours = list(inspect.signature(oncurve.GRPO).parameters.values())
    positional = [parameter for parameter in ours if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    shown = [p.name if p.name in ("model", "ref_model", "reward_fn") else f"{p.name}={p.default}" for p in positional]
    assert ", ".join(shown) == RLOX_1_2
    assert inspect.signature(oncurve.GRPO).parameters["max_grad_norm"].default == 1.0


def tensor(rewards: list[float]) -> Tensor:
    return torch.tensor(rewards, dtype=torch.float64)


@pytest.mark.parametrize("kind", [list, numpy.array, tensor])
def test_group_advantages_by_rloxs_names(kind: Any) -> None:
    one, other = [1.0, 0.0, 0.0, 1.0], [0.2, 0.5, 0.9, 0.4]
    expected = [-1.17669681, 0, 1.56892908, -0.39223227]
    assert oncurve.compute_group_advantages(kind(one)).tolist() == [1, -1, -1, 1]
    both = oncurve.compute_batch_group_advantages(kind(one + other), 4)
    assert both.tolist() == pytest.approx([1, -1, -1, 1, *expected], abs=1e-8)
    assert isinstance(both, Tensor if kind is tensor else numpy.ndarray)
    assert oncurve.compute_group_advantages(kind([0.7] * 8)).tolist() == [0] * 8
    assert oncurve.compute_group_advantages(kind([0.7, 0.7 + 1e-9])).tolist() == [0, 0]  # std < 1e-8
    assert oncurve.compute_batch_group_advantages(kind(one), 1).tolist() == [0] * 4
    assert oncurve.compute_group_advantages(kind([])).tolist() == []


def test_the_model_as_its_own_reference_may_have_an_adapter() -> None:
    model = TinyLM()
    settings = {"lora": {"rank": 2}, "learner": {"learning_rate": 0.1}}
    trainer = oncurve.GRPO(model, ref_model=model, reward_fn=threes, group_size=4, settings=settings)
    assert trainer.train_step(PROMPTS)["kl"] == 0
    assert trainer.train_step(PROMPTS)["kl"] > 0


RLOX_FILE = (RECIPES / "rlox.yaml").read_text(encoding="utf-8")


def test_a_file_of_rloxs_trains_by_the_command_of_its_pages(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(RLOX_FILE)
    words = ("model.path=model", "--data", "data.jsonl", "--reward", "reward.py:length", "run.steps=1")
    command("train", "--config", "config.yaml", *words, "data.prompts_per_step=2", "--out", "run").fine()
    config, _ = load_config(tmp_path / "run")
    assert (config.run.seed, config.rollout.group_size, type(config.objective).__name__) == (3, 2, "Reinforce")


def test_what_config_takes_is_said(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("algorithm: ppo\n")
    refused(command("train", "--config", "config.yaml"), "algorithm: 'ppo'", "control tasks")
    (tmp_path / "config.yaml").write_text(RLOX_FILE)
    refused(command("train", "--config", "config.yaml", "--preset", "grpo"), "leave one of them out")
    refused(command("train", "--config", "no.yaml"), "no.yaml")
    without = command("train")
    assert (without.code, "name a recipe or a model" in without.err) == (2, True)
    refused(command("train", "--config", "recipe.toml", "run.steps=0"), "run.steps")
