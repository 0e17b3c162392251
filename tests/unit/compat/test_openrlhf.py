"""OpenRLHF's flags as recipes: every flag has a fate, the calls of its scripts are translated, mistakes are said."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from fakes.mutations import Pairs, accounted, mutations
from oncurve.base.errors import ConfigError
from oncurve.compat import Translation, config_of, from_openrlhf, recipe_of
from oncurve.compat.openrlhf import DIALECT
from oncurve.compat.openrlhf.words import RENAMED, SHORTHANDS

FLAGS = (Path(__file__).parent / "openrlhf_flags" / "0.11.txt").read_text().split()
"""The flags of 0.11.2's train_ppo_ray."""

OLDER = (Path(__file__).parent / "openrlhf_flags" / "older.txt").read_text().split()
"""Flags of 0.5 to 0.9."""


def test_every_flag_has_a_fate() -> None:
    table = DIALECT.table
    assert [name for name in FLAGS if name not in table] == []
    assert [name for name in OLDER if RENAMED.get(name, name) not in table and name not in SHORTHANDS] == []
    assert set(RENAMED.values()) <= set(table)


GRPO = """
--ref_num_nodes 1 --ref_num_gpus_per_node 8 --reward_num_nodes 1 --reward_num_gpus_per_node 8
--actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 2 --vllm_tensor_parallel_size 4
--colocate_all_models --vllm_gpu_memory_utilization 0.6 --init_kl_coef 1e-6 --gamma 1.0 --use_kl_loss
--use_kl_estimator_k3 --advantage_estimator group_norm --pretrain OpenRLHF/Llama-3-8b-sft-mixture
--reward_pretrain OpenRLHF/Llama-3-8b-rm-700k --save_path /openrlhf/final --ckpt_path /openrlhf/ckpt
--save_hf_ckpt --micro_train_batch_size 8 --train_batch_size 128 --micro_rollout_batch_size 16
--rollout_batch_size 1024 --n_samples_per_prompt 8 --max_epochs 1 --prompt_max_len 1024 --max_samples 100000
--generate_max_len 1024 --zero_stage 3 --bf16 --actor_learning_rate 5e-7 --critic_learning_rate 9e-6
--prompt_data OpenRLHF/prompt-collection-v0.1 --input_key context_messages --apply_chat_template
--normalize_reward --adam_offload --gradient_checkpointing --packing_samples --vllm_sync_backend nccl
--enforce_eager --vllm_enable_sleep
"""
"""The flags of OpenRLHF's script for GRPO."""
REINFORCE = """
--pretrain Qwen/Qwen3-4B-Thinking-2507 --load_checkpoint --save_path exp --ckpt_path exp/ckpt --save_steps 10
--remote_rm_url reward_func.py --prompt_data zhuzilin/dapo-math-17k --input_key prompt --label_key label
--apply_chat_template --rollout_batch_size 128 --n_samples_per_prompt 8 --train_batch_size 1024
--dynamic_filtering --dynamic_filtering_reward_range 0.0 1.0 --generate_max_len 64000
--advantage_estimator reinforce_baseline --actor_learning_rate 5e-7 --entropy_loss_coef 0.0
--init_kl_coef 1e-5 --use_kl_loss --kl_estimator k2 --enable_vllm_is_correction --vllm_is_correction_type icepop
"""
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


def test_the_flags_of_the_reinforce_script_are_a_recipe_and_later_ones_win() -> None:
    found = from_openrlhf([*REINFORCE.split(), "--train_batch_size", "512", "--rollout.temperature=0.8"])
    config, _ = config_of(found)
    assert type(config.advantage).__name__ == "ReinforcePPBaselineAdvantage"
    assert (config.learner.minibatches, config.rollout.temperature, config.kl.estimator) == (2, 0.8, "k2")
    assert (config.filter.dynamic_sampling, config.entropy.coef, config.checkpoint.every) == (True, 0.0, 10)
    assert found.settings["correction"] == {
        "kind": "masked",
        "level": "token",
        "threshold": 5.0,
        "threshold_lower": 0.5,
    }
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--advantage_estimatr gae", "advantage_estimatr: OpenRLHF 0.11 has no such flag; did you mean 'advantage_es"),
        (
            "--advantage_estimator group_nrm",
            "algo.advantage.estimator: expected one of gae, .*did you mean 'group_norm'",
        ),
        ("--advantage_estimator flash_reinforce", "flash_reinforce: not available here: reinforce_baseline"),
        ("--train_batch_size 100", "train.batch_size: 1024 prompts .* cannot be divided into updates of 100"),
        ("--n_samples_per_prompt 0", "rollout.n_samples_per_prompt is 0, and must be a whole number above 0"),
        ("--bf16 true", "a flag without a value, got 'true'"),
        ("--eps_clip_low_high 0.2", "expected two numbers, got 1 words"),
        ("--kl_estimator k3 --init_kl_coef 0.1", "k3 in the reward is not here; give k1, or --algo.kl.use_loss"),
        ("--remote_rm_url http://x", "a reward is no service here"),
        ("--input_template x", 'expected "{}" once'),
        ("--max_len 10 --generate_max_len 10", "leaves no room for a prompt"),
        ("", "give OpenRLHF's flags, like"),
        ("run.sh --bf16", "scripts are not read; write `oncurve config from-openrlhf` in it where"),
    ],
)
def test_what_cannot_be_is_said(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_openrlhf(words.split())


def test_mistakes_in_flags_are_translated_or_refused() -> None:
    valid = {
        "actor.model_name_or_path": "M", "algo.advantage.estimator": "group_norm", "algo.kl.init_coef": "0.001",
        "rollout.n_samples_per_prompt": "8", "rollout.batch_size": "16", "train.batch_size": "64",
        "actor.adam.lr": "1e-6", "data.prompt_dataset": "d.jsonl", "vllm.num_engines": "2", "rollout.top_p": "1.0",
        "actor.lr_scheduler": "linear", "reward.remote_url": "f.py", "data.input_template": "Q {}",
    }  # fmt: skip
    seen = Counter(accounted(each, of_pairs) for each in mutations(valid, 200, texts=True))
    assert set(seen) == {"translated", "refused", "impossible"}


def of_pairs(pairs: Pairs) -> Translation:
    words = [word for name, value in pairs for word in (f"--{name}", value)]
    return from_openrlhf([*words, "--algo.kl.use_loss", "--algo.kl.estimator", "k3"])
