"""OpenRLHF's flags as recipes: every flag has a fate, the calls of its scripts are translated, mistakes are said."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from fakes.mutations import Pairs, accounted, mutations
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.compat import Translation, config_of, from_openrlhf, recipe_of
from oncurve.compat.openrlhf import DIALECT
from oncurve.compat.openrlhf.functions import RENAMED, SHORTHANDS

FLAGS = (Path(__file__).parent / "openrlhf_flags" / "0.11.txt").read_text().split()
"""The flags of 0.11.2's train_ppo_ray."""

OLDER = (Path(__file__).parent / "openrlhf_flags" / "older.txt").read_text().split()
"""Flags of 0.5 to 0.9."""


def test_every_flag_has_a_fate() -> None:
    table = DIALECT.table
    assert [name for name in FLAGS if name not in table] == []
    assert [name for name in OLDER if RENAMED.get(name, name) not in table and name not in SHORTHANDS] == []
    assert set(RENAMED.values()) <= set(table)


GRPO = table("openrlhf", "flags")["grpo"]
"""The flags of OpenRLHF's script for GRPO."""
REINFORCE = table("openrlhf", "flags")["reinforce"]
"""The flags of OpenRLHF's script for REINFORCE++-baseline."""


def test_the_flags_of_the_grpo_script_are_a_recipe() -> None:
    found = from_openrlhf(GRPO.split())
    assert found.counted() == (
        "43 keys of OpenRLHF: 20 translated, 23 without meaning here; 9 defaults of OpenRLHF that differ"
    )
    assert len(found.given()) == GRPO.count("--")
    config, _ = config_of(found)
    assert (config.data.prompts_per_step, config.rollout.group_size, config.learner.minibatches) == (1024, 8, 64)
    assert (config.kl.where, config.kl.estimator, config.kl.coef) == ("loss", "k3", 1e-6)
    assert (config.learner.learning_rate, config.learner.betas, config.learner.schedule) == (
        5e-7,
        (0.9, 0.95),
        "cosine",
    )
    assert (config.data.max_prompt_tokens, config.rollout.max_new_tokens, config.run.epochs) == (1024, 1024, 1)
    assert tomllib.loads(recipe_of(found))["rewards"] == [{"kind": "model", "path": "OpenRLHF/Llama-3-8b-rm-700k"}]


def test_gspo_adds_up_by_completions_whatever_the_other_terms_do() -> None:
    flags = [*GRPO.split(), "--actor.policy_loss_type", "gspo"]
    found = from_openrlhf(flags).settings
    assert found["aggregation"] == {"kind": "seq-mean-token-mean"}
    assert found["kl"]["aggregation"] == "token-mean"


def test_the_flags_of_the_reinforce_script_are_a_recipe_and_later_ones_win() -> None:
    found = from_openrlhf([*REINFORCE.split(), "--train_batch_size", "512", "--rollout.temperature=0.8"])
    config, _ = config_of(found)
    assert type(config.advantage).__name__ == "ReinforcePPBaselineAdvantage"
    assert (config.learner.minibatches, config.rollout.temperature, config.kl.estimator) == (2, 0.8, "k2")
    assert (config.filter.dynamic_sampling, config.entropy.coef, config.checkpoint.every) == (True, 0.0, 10)
    assert found.settings["correction"] == table("openrlhf", "correction")
    assert found.settings["rewards"] == [{"kind": "python", "path": "reward_func.py:reward_func"}]
    assert found.settings["data"]["columns"] == {"label": "label"}


@pytest.mark.parametrize("old", [False, True])
def test_a_correction_is_enabled_and_then_has_its_type_in_any_order(old: bool) -> None:
    a = "--algo.advantage.is_correction"
    enable = "--enable_vllm_is_correction" if old else f"{a}_enable"
    kind = "--vllm_is_correction_type" if old else f"{a}_type"
    bounds = "--vllm_is_truncated_threshold" if old else f"{a}_threshold"
    assert "correction" not in from_openrlhf([kind, "icepop"]).settings
    assert from_openrlhf([enable, bounds, "0.5", "4"]).settings["correction"] == {
        "kind": "truncated",
        "level": "token",
        "threshold": 4,
    }
    for words in ([kind, "icepop", enable], [enable, kind, "icepop"], [enable, "--use_icepop"]):
        assert from_openrlhf(words).settings["correction"]["kind"] == "masked"
    assert from_openrlhf([enable, kind, "seq-mask-tis"]).settings["correction"]["level"] == "geometric"


def test_the_flags_of_0_11_are_those_of_before() -> None:
    older = "--pretrain M --advantage_estimator dr_grpo --n_samples_per_prompt 4 --eps_clip_low_high 0.2 0.28 --l2 0.1"
    newer = (
        "--actor.model_name_or_path M --algo.advantage.estimator dr_grpo --rollout.n_samples_per_prompt 4 "
        "--actor.eps_clip_low_high 0.2 0.28 --actor.adam.weight_decay 0.1"
    )
    assert from_openrlhf(older.split()).settings == from_openrlhf(newer.split()).settings


def test_defaults_are_openrlhfs() -> None:
    found = from_openrlhf(["--pretrain", "M", "--init_kl_coef", "0.1"])
    config, _ = config_of(found)
    assert (type(config.critic).__name__, config.advantage.lam, config.critic.learning_rate) == (
        "CriticConfig",
        1.0,
        9e-6,
    )
    assert (config.kl.where, config.rollout.group_size, config.learner.minibatches) == ("reward", 1, 8)


@pytest.mark.parametrize(("words", "message"), table("openrlhf", "refused"))
def test_what_cannot_be_is_said(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_openrlhf(words.split())


def test_mistakes_in_flags_are_translated_or_refused() -> None:
    valid = table("openrlhf", "valid")  # fmt: skip
    seen = Counter(accounted(each, of_pairs) for each in mutations(valid, 200, texts=True))
    assert set(seen) == {"translated", "refused", "impossible"}


def of_pairs(pairs: Pairs) -> Translation:
    words = [word for name, value in pairs for word in (f"--{name}", value)]
    return from_openrlhf([*words, "--algo.kl.use_loss", "--algo.kl.estimator", "k3"])
