"""TRL's PPO settings: what each becomes, its sizes, its refusals, and that no mistake is lost."""

import dataclasses
from typing import Any

import pytest
import torch
from transformers import HfArgumentParser, TrainingArguments

from fakes.mutations import accounted, mutations
from oncurve.base.errors import ConfigError
from oncurve.compat import config_of
from oncurve.compat.dialect import Said
from oncurve.compat.trl.dialect import Told
from oncurve.compat.trl.ppo_arguments import check_begins_as
from oncurve.compat.trl.ppo_config import PPOConfig
from oncurve.compat.trl.ppo_dialect import DIALECT
from oncurve.config import load_config

OWN_FIELDS = (
    "dataset_num_proc num_mini_batches total_episodes local_rollout_forward_batch_size num_sample_generations "
    "response_length stop_token stop_token_id temperature missing_eos_penalty sft_model_path world_size "
    "num_total_batches micro_batch_size local_batch_size batch_size local_mini_batch_size mini_batch_size "
    "reward_model_path model_adapter_name ref_adapter_name num_ppo_epochs whiten_rewards kl_coef kl_estimator "
    "cliprange vf_coef cliprange_value gamma lam ds3_gather_for_generation"
)
GIVEN = {
    "PPOTrainer.model": Said(Told("a model", {"model.path": "some/model"})),
    "PPOTrainer.train_dataset": Said(Told("rows", {"data.kind": "list", "data.rows": ["a"], "data.chat": "never"})),
    "PPOTrainer.eval_dataset": Said(Told("rows", {"data.eval_rows": ["b"]})),
    "PPOTrainer.reward_model": Said(Told("rm", {"rewards": [{"kind": "model", "path": "rm", "name": "score"}]})),
}
VALID: dict[str, Any] = {
    "output_dir": "out",
    "learning_rate": 1e-5,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_mini_batches": 2,
    "total_episodes": 1000,
    "num_ppo_epochs": 2,
    "response_length": 64,
    "missing_eos_penalty": 1.0,
    "stop_token": "eos",
    "kl_coef": 0.03,
    "kl_estimator": "k1",
    "cliprange": 0.1,
    "cliprange_value": 0.3,
    "vf_coef": 0.2,
    "gamma": 0.99,
    "lam": 0.9,
    "whiten_rewards": False,
    "save_steps": 10,
    "eval_strategy": "steps",
    "eval_steps": 5,
    "warmup_steps": 3,
    "sft_model_path": "a",
    "reward_model_path": "b",
    "report_to": "none",
    "local_rollout_forward_batch_size": 8,
    "bf16": True,
}
BY_HAND = {
    "model": {"path": "some/model"},
    "data": {"kind": "list", "rows": ["a"], "eval_rows": ["b"], "chat": "never", "prompts_per_step": 8},
    "rollout": {"group_size": 1, "max_new_tokens": 64, "temperature": 0.7},
    "run": {"steps": 125, "seed": 42},
    "learner": {
        "learning_rate": 1e-5,
        "ppo_epochs": 2,
        "max_grad_norm": 0.0,
        "schedule": "linear",
        "warmup_steps": 6,
        "gradient_checkpointing": True,
    },
    "advantage": {"kind": "gae", "gamma": 0.99, "lam": 0.9, "scale": "batch"},
    "critic": {"kind": "own", "learning_rate": 1e-5, "clip": 0.3},
    "objective": {"kind": "clipped", "clip_low": 0.1, "clip_high": 0.1},
    "aggregation": {"kind": "token-mean"},
    "kl": {"where": "reward", "coef": 0.03},
    "checkpoint": {"every": 10, "keep": 10**9},
    "eval": {"every": 5, "n": 1, "at_start": False},
    "rewards": [
        {"kind": "length_cap", "max_length": 63, "penalty": -1.0},
        {"kind": "model", "path": "rm", "name": "score"},
    ],
}


def settings(**given: Any) -> dict[str, Any]:
    translation = PPOConfig(**given).translated(**GIVEN)
    config_of(translation)
    tables = translation.settings
    rewards = {"rewards": tables.pop("rewards")}
    return {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()} | rewards


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(**given)
    return str(caught.value)


def test_the_settings_are_those_of_a_recipe_written_by_hand() -> None:
    translated, _ = config_of(PPOConfig(**VALID).translated(**GIVEN))
    written, _ = load_config(None, settings=BY_HAND)
    assert translated == written


def test_the_defaults_of_ppo_are_trls() -> None:
    found = settings()
    assert {
        name: found[name] for name in found if not name.startswith(("data.", "rewards", "model.", "checkpoint"))
    } == {
        "rollout.group_size": 1,
        "rollout.max_new_tokens": 53,
        "rollout.temperature": 0.7,
        "run.epochs": 3.0,
        "run.seed": 42,
        "learner.ppo_epochs": 4,
        "learner.learning_rate": 3e-6,
        "learner.max_grad_norm": 0.0,
        "learner.schedule": "linear",
        "learner.gradient_checkpointing": True,
        "advantage.kind": "gae",
        "advantage.lam": 0.95,
        "critic.kind": "own",
        "critic.learning_rate": 3e-6,
        "objective.kind": "clipped",
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.2,
        "aggregation.kind": "token-mean",
        "kl.where": "reward",
        "kl.coef": 0.05,
    }
    config, _ = config_of(PPOConfig().translated(**GIVEN))
    critic: Any = config.critic
    assert (config.data.prompts_per_step, critic.clip) == (8, 0.2)


def test_the_fields_are_those_of_training_arguments_and_of_ppo() -> None:
    wanted = {each.name for each in dataclasses.fields(TrainingArguments)} | set(OWN_FIELDS.split())
    config: Any = PPOConfig
    assert {each.name for each in dataclasses.fields(config)} == wanted
    names = [key.theirs for key in DIALECT.keys]
    assert len(names) == len(set(names))
    assert all(key.note for key in DIALECT.keys if not key.ours)


@pytest.mark.parametrize(
    ("rows", "accumulated", "minibatches", "prompts", "updates"),
    [(8, 1, 1, 8, 1), (8, 1, 4, 8, 4), (4, 4, 1, 16, 1), (4, 4, 2, 16, 1), (4, 4, 4, 16, 1), (4, 2, 4, 8, 2)],
)
def test_a_pass_has_the_updates_of_trls_loop(
    rows: int, accumulated: int, minibatches: int, prompts: int, updates: int
) -> None:
    """The loop of TRL, counted: an update after every `accumulated` pieces of at most `rows`."""
    size = rows * accumulated // minibatches
    pieces = minibatches * len(range(0, size, rows))
    assert pieces // accumulated == updates
    found = settings(
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulated,
        num_mini_batches=minibatches,
        total_episodes=100,
    )
    assert (found["data.prompts_per_step"], found.get("learner.minibatches", 1)) == (prompts, updates)
    assert found["run.steps"] == -(-100 // prompts)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_mini_batches": 3}, "must be a multiple of num_mini_batches=3"),
        (
            {"num_mini_batches": 4, "gradient_accumulation_steps": 6},
            "an update would end within a pass over the batch",
        ),
        ({"kl_estimator": "k3"}, "kl_estimator: in the reward the KL is the difference of the log-probs"),
        ({"kl_estimator": "k2"}, "kl_estimator is 'k1' or 'k3'"),
        ({"whiten_rewards": True}, "whiten_rewards: not available here"),
        ({"missing_eos_penalty": -1.0}, "missing_eos_penalty: expected a number above 0"),
        ({"cliprange_value": 0.0}, "cliprange_value: 0 is no clipping here"),
        ({"stop_token": "end"}, "stop_token is 'eos' or None"),
        ({"stop_token": "eos", "stop_token_id": 3}, "say the same"),
        ({"ref_adapter_name": "x"}, "ref_adapter_name: not available here"),
        ({"total_episodes": 0}, "total_episodes: expected a number of completions"),
        ({"save_steps": float("inf")}, "save_steps: expected a whole number"),
        ({"warmup_steps": float("nan")}, "warmup_steps: expected a number of batches"),
        ({"num_train_epochs": float("inf")}, "num_train_epochs: expected a number above 0"),
        ({"save_steps": 0.5}, "save_steps: 0.5 is a share of all batches; give total_episodes"),
        ({"kl_coeff": 0.1}, "did you mean 'kl_coef'?"),
        ({"lam": 2.0}, "lam=2.0"),
        ({"num_generations": 4}, "TRL PPO 0.29 has no such setting"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    assert says in refusal(**given)


def test_what_changes_nothing_is_no_error() -> None:
    assert settings(kl_coef=0.0, kl_estimator="k3")["kl.coef"] == 0.0
    assert "kl.where" not in settings(kl_coef=0.0)
    assert settings(vf_coef=0.0)["critic.learning_rate"] == 0.0
    assert settings(stop_token_id=7)["rollout.eos_ids"] == [7]
    words = ["--output_dir", "x", "--kl_coef", "0.1", "--total_episodes", "64", "--missing_eos_penalty", "1.0"]
    (args,) = HfArgumentParser(PPOConfig).parse_args_into_dataclasses(words, look_for_args_file=False)
    assert args == PPOConfig("x", kl_coef=0.1, total_episodes=64, missing_eos_penalty=1.0)
    assert dataclasses.replace(args, lam=0.5).lam == 0.5


def test_models_with_other_weights_are_refused() -> None:
    torch.manual_seed(0)
    policy, same, other = (torch.nn.Linear(2, 2) for _ in range(3))
    same.load_state_dict(policy.state_dict())
    check_begins_as(policy, None, "ref_model", "")
    check_begins_as(policy, same.to(torch.bfloat16), "ref_model", "")
    check_begins_as("a/b", "a/b", "value_model", "")
    for wrong in (other, policy):
        with pytest.raises(ConfigError, match="ref_model: it"):
            check_begins_as(policy, wrong, "ref_model", "the reference is the policy")
    with pytest.raises(ConfigError, match=r"value_model: it is of 'a/c', and model of 'a/b'"):
        check_begins_as("a/b", "a/c", "value_model", "")
    with pytest.raises(ConfigError, match="value_model: expected a folder"):
        check_begins_as("a/b", 3, "value_model", "")


@pytest.mark.parametrize("seed", range(2))
def test_every_mistake_in_a_config_is_translated_or_refused(seed: int) -> None:
    found = [
        accounted(each, lambda pairs: PPOConfig(**dict(pairs)).translated()) for each in mutations(VALID, 100, seed)
    ]
    assert {"translated", "refused"} <= set(found)
