"""verl's table: every setting of its files, its defaults, and what single settings become."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from fakes.messages import message_of
from fakes.mutations import accounted, mutations
from fakes.tables import table
from fakes.tiny_policy import random_groups
from fakes.verl_commands import COMMANDS
from oncurve.advantages import GDPOAdvantage
from oncurve.base.errors import ConfigError
from oncurve.batching import collate
from oncurve.compat import Translation, config_of, recipe_of
from oncurve.compat.dialect import Said
from oncurve.compat.verl import ABOUT, DIALECT, read
from oncurve.compat.verl.components import part_of_score
from oncurve.compat.verl.reading import OPEN
from oncurve.compat.verl.reward import CHECKERS, NO_CHECKER

A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
GRPO = ("algorithm.adv_estimator=grpo", f"{R}.n=8")
SOME = ("data.train_batch_size=64", f"{A}.ppo_mini_batch_size=16")


def translated(*words: str) -> Translation:
    return DIALECT.translate(read(words).said)


def settings(*words: str) -> dict[str, Any]:
    tables = translated(*words).settings
    rewards = tables.pop("rewards", [])
    flat = {f"{section}.{name}": value for section, table in tables.items() for name, value in table.items()}
    return flat | {f"rewards.{index}": table for index, table in enumerate(rewards)}


def refusal(*words: str) -> str:
    return message_of(ConfigError, lambda: config_of(translated(*words)))


def leaves(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict) or not tree:
        yield above, tree
        return
    for name, inner in tree.items():
        yield from leaves(inner, f"{above}.{name}" if above else str(name))


def verls(name: str) -> dict[str, Any]:
    """The leaves of one of verl's own files, of the package that is installed."""
    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("verl is not installed: its configuration is compared where it is")
    file = Path(spec.submodule_search_locations[0]) / "trainer" / "config" / name
    return dict(leaves(yaml.safe_load(file.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("engine", ["", "megatron_", "veomni_", "torchtitan_"])
def test_every_setting_of_verls_configuration_is_in_the_table(engine: str) -> None:
    names = verls(f"_generated_ppo_{engine}trainer.yaml")
    table = DIALECT.table_for(names)
    assert [name for name in names if name not in table and not name.startswith(OPEN)] == []


@pytest.mark.parametrize("word", table("translation", "no_effect_in_any_version"))
def test_settings_of_verls_workers_change_nothing_in_any_version(word: str) -> None:
    assert settings(*GRPO, word) == settings(*GRPO)


@pytest.mark.parametrize("word", table("translation", "refused_without_meaning"))
def test_what_changes_numbers_is_refused_in_a_section_without_meaning(word: str) -> None:
    assert f"{word.partition('=')[0]}: not available here" in refusal(*GRPO, word)


def test_held_out_rows_are_left_out_where_nothing_reads_them() -> None:
    both = ("data.train_files=a.parquet", "data.val_files=a.parquet", "trainer.test_freq=-1")
    assert "data.eval_path" not in settings(*GRPO, *both, "trainer.val_before_train=False")
    assert settings(*GRPO, *both)["data.eval_path"] == "a.parquet"


@pytest.mark.parametrize("section", ["reward_model.overlong_buffer", "custom_reward_function.overlong_buffer"])
def test_dapos_buffer_is_read_in_the_place_of_each_version(section: str) -> None:
    words = (f"{section}.enable=True", f"{section}.len=4", f"{section}.penalty_factor=0.5")
    found = settings(*GRPO, "reward_model.reward_manager=dapo", *words)
    assert {"kind": "overlong", "buffer": 4, "weight": 0.5} in found.values()


def test_tools_of_several_turns_are_an_environment() -> None:
    on = f"{R}.multi_turn.enable=True"
    assert "set actor_rollout_ref.rollout.multi_turn.tool_config_path" in refusal(*GRPO, on)
    found = settings(*GRPO, on, f"{R}.multi_turn.tool_config_path=tools.yaml", f"{R}.multi_turn.max_assistant_turns=5")
    assert (found["environment.kind"], found["environment.max_turns"]) == ("tools", 5)
    assert found["environment.path"] == "oncurve.compat.verl.tools:VerlTools"
    assert found["environment.settings"]["config"].endswith("tools.yaml")
    assert "environment.max_turns" not in settings(*GRPO, f"{R}.multi_turn.max_assistant_turns=5")


def test_each_library_has_the_schedule_that_it_has_in_verl() -> None:
    for words, schedule in (
        (("model_engine=megatron",), None),
        (("model_engine=veomni",), "cosine"),
        (("model_engine=veomni", f"{A}.optim.lr_scheduler_type=constant"), "constant"),
        (("model_engine=torchtitan",), "linear"),
        (("model_engine=torchtitan", f"{A}.optim.decay_type=cosine"), "cosine"),
        ((f"{A}.optim.lr_decay_style=linear",), "linear"),
    ):
        assert settings(*GRPO, *words).get("learner.schedule") == schedule, words
    warm = (f"{A}.optim.lr_warmup_steps=5", f"{A}.optim.lr_warmup_steps_ratio=0.1")
    assert "learner.warmup_ratio" not in settings(*GRPO, *warm)
    assert settings(*GRPO, *warm, "model_engine=veomni")["learner.warmup_ratio"] == 0.1
    assert "automodel" in refusal(*GRPO, "model_engine=automodel")


def test_the_defaults_are_those_of_verls_configuration() -> None:
    theirs = verls("_generated_ppo_trainer.yaml")
    for key in DIALECT.keys:
        there = key.theirs in theirs and "${" not in str(theirs[key.theirs]) and key.theirs != "trainer.logger"
        if key.default is not None and there:
            assert (key.theirs, key.default) == (key.theirs, theirs[key.theirs])


def test_every_source_with_a_checker_is_on_the_page() -> None:
    assert all(name in ABOUT for name in (*CHECKERS, *NO_CHECKER))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("seed", range(4))
def test_mutations_are_translated_or_refused_with_their_key(name: str, seed: int) -> None:
    valid = COMMANDS[name]

    def translate(pairs: tuple[tuple[str, Any], ...]) -> Translation:
        return DIALECT.translate(read([f"{key}={value}" for key, value in pairs]).said)

    for mutation in mutations(valid, 12, seed, texts=True):
        names = [key.lstrip("+") for key, _ in mutation.pairs]
        if not any(name.startswith(OPEN) or "=" in name for name in names):  # a part of a table; another word
            accounted(mutation, translate)


def test_values_of_any_type_are_translated_or_refused() -> None:
    said = read([f"{name}={value}" for name, value in COMMANDS["ppo"].items()]).said
    plain = {name: each.value for name, each in said.items()}

    def translate(pairs: tuple[tuple[str, Any], ...]) -> Translation:
        return DIALECT.translate({name: Said(value, "given") for name, value in pairs})

    for mutation in mutations(plain, 60, 1):
        accounted(mutation, translate)


K = f"{A}.use_kl_loss=True"


@pytest.mark.parametrize(("keys", "theirs", "ours"), table("translation", "meanings"))
def test_each_word_of_verls_has_a_meaning_that_loads(keys: str, theirs: str, ours: str) -> None:
    name, setting = keys.split()
    words = ["algorithm.adv_estimator=grpo", f"{R}.n=4", *SOME, K, f"{name}={theirs}"]
    assert settings(*words)[setting] == ours
    config_of(translated(*words))


@pytest.mark.parametrize("word", table("translation", "words_without_counterpart"))
def test_a_word_without_counterpart_is_refused_by_name(word: str) -> None:
    assert word.partition("=")[2] in refusal(*GRPO, word)


def test_one_wrong_word_is_one_error() -> None:
    assert len(refusal(*SOME, "algorithm.adv_estimator=grop").splitlines()) == 1


@pytest.mark.parametrize("mode", ["gspo", "geo_mean", "cispo"])
def test_a_loss_mode_with_a_clip_gets_verls_default(mode: str) -> None:
    given = settings(*GRPO, f"{A}.policy_loss.loss_mode={mode}")
    assert (given["objective.clip_low"], given["objective.clip_high"]) == (0.2, 0.2)


@pytest.mark.parametrize("mode", ["gspo", "sapo", "geo_mean"])
def test_kl_and_entropy_add_up_by_loss_agg_mode_whatever_the_policy_term_does(mode: str) -> None:
    words = (*GRPO, f"{A}.policy_loss.loss_mode={mode}", f"{A}.entropy_coeff=0.01")
    given = settings(*words, f"{A}.use_kl_loss=True")
    assert (given["aggregation.kind"], given["kl.aggregation"]) == ("seq-mean-token-mean", "token-mean")
    assert (given["entropy.coef"], given["entropy.aggregation"]) == (0.01, "token-mean")
    config_of(translated(*words, f"{A}.use_kl_loss=True"))
    for same in (f"{A}.loss_agg_mode=seq-mean-token-mean", f"{A}.entropy_coeff=0"):
        assert "entropy.aggregation" not in settings(*words, same)


def test_gdpo_has_a_reward_for_each_part_of_the_score(tmp_path: Path) -> None:
    file = tmp_path / "score.py"
    file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
                    "    return {'score': 3.0, 'a': len(solution_str), 'b': float(ground_truth)}\n")  # fmt: skip
    words = ("algorithm.adv_estimator=gdpo", f"{R}.n=4", *SOME, f"custom_reward_function.path={file}")
    assert "gdpo needs algorithm.gdpo_reward_keys" in refusal(*words)
    words = (*words, "+algorithm.gdpo_reward_keys=[a,b]", "+algorithm.gdpo_reward_weights=[1,0.5]")
    config, _ = config_of(translated(*words))
    assert config.advantage == GDPOAdvantage(scale="tokens")
    assert [(reward.name, reward.weight) for reward in config.rewards] == [("a", 1.0), ("b", 0.5)]
    for reward, right in zip(config.rewards, (2, 7.0), strict=True):
        assert part_of_score("gsm8k", "no", "7", **reward.kwargs) == right
    assert "gdpo divides each reward" in refusal(*words, "algorithm.norm_adv_by_std_in_grpo=False")
    assert "gdpo needs a function" in refusal(*[word for word in words if "path=/" not in word])


def test_gpg_scales_by_the_share_of_completions_with_a_reward() -> None:
    config, _ = config_of(
        translated("algorithm.adv_estimator=gpg", f"{R}.n=4", f"{A}.policy_loss.loss_mode=gpg", *SOME)
    )
    batch = collate(random_groups(count=1, rewards=[[1.0, 0.0, 0.0, 2.0]]))
    assert config.advantage(batch)[:, 0].tolist() == [0.5, -1.5, -1.5, 2.5]  # 4 / 2 times r - 0.75


def test_the_sum_of_completions_has_its_length() -> None:
    words = (*GRPO, f"{A}.loss_agg_mode=seq-mean-token-sum-norm", f"{A}.loss_scale_factor=100")
    given = settings(*words)
    assert (given["aggregation.kind"], given["aggregation.max_length"]) == ("seq-mean-token-sum-norm", 100)
    assert "aggregation.max_length" not in settings(*GRPO, f"{A}.loss_scale_factor=100")


def test_the_kl_counts_where_it_is_said() -> None:
    assert settings(*GRPO)["kl.coef"] == 0
    assert "kl.where" not in settings(*GRPO, "algorithm.kl_ctrl.kl_coef=0.1")
    loss = settings(*GRPO, f"{A}.use_kl_loss=True", f"{A}.kl_loss_coef=0.04")
    assert (loss["kl.where"], loss["kl.coef"]) == ("loss", 0.04)
    adaptive = settings(
        *GRPO,
        "algorithm.use_kl_in_reward=True",
        "algorithm.kl_ctrl={type: adaptive, kl_coef: 0.2, target_kl: 0.05, horizon: 500}",
    )
    kl = {name: value for name, value in adaptive.items() if name.startswith("kl.")}
    assert kl == table("translation", "adaptive_kl")
    assert "set one of them to False" in refusal(*GRPO, f"{A}.use_kl_loss=True", "algorithm.use_kl_in_reward=True")
    assert "for the loss" in refusal(*GRPO, "algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=low_var_kl")


def test_clip_ratio_counts_for_each_side_that_is_not_given() -> None:
    clips = ("objective.clip_low", "objective.clip_high")
    for words, found in (
        ((f"{A}.clip_ratio=0.3",), (0.3, 0.3)),
        ((f"{A}.clip_ratio=0.3", f"{A}.clip_ratio_high=0.4"), (0.3, 0.4)),
        ((f"{A}.clip_ratio_low=0.1", f"{A}.clip_ratio_high=0.4"), (0.1, 0.4)),
    ):
        given = settings(*GRPO, *words)
        assert tuple(given[name] for name in clips) == found
    cispo = settings(*GRPO, f"{A}.policy_loss.loss_mode=cispo", f"{A}.clip_ratio_low=10", f"{A}.clip_ratio_high=0.2")
    assert tuple(cispo[name] for name in clips) == (10, 0.2)
    assert "does not use it" in DIALECT.table[f"{A}.clip_ratio"].note


def test_sizes_are_in_verls_units() -> None:
    given = settings(
        *GRPO,
        "data.train_batch_size=64",
        f"{A}.ppo_mini_batch_size=16",
        f"{A}.ppo_epochs=2",
        f"{A}.optim.lr_warmup_steps=5",
    )
    assert (given["data.prompts_per_step"], given["learner.minibatches"]) == (64, 4)
    assert given["learner.warmup_steps"] == 5 * 4 * 2
    ppo = settings("algorithm.adv_estimator=gae", *SOME, "trainer.critic_warmup=3")
    assert ppo["critic.warmup_steps"] == 2 * 4
    assert "not whole minibatches" in refusal(*GRPO, "data.train_batch_size=64", f"{A}.ppo_mini_batch_size=48")
    assert settings(*GRPO[:1], "actor_rollout.ref.rollout.n=6")["rollout.group_size"] == 6


def test_correction_and_truncated_and_dynamic_sampling() -> None:
    c = "algorithm.rollout_correction"
    given = settings(*GRPO, f"{c}.rollout_is=token", f"{c}.rollout_is_threshold=3")
    assert (given["correction.kind"], given["correction.threshold"]) == ("truncated", 3)
    masked = settings(*GRPO, f"{c}.rollout_is=sequence", f"{c}.rollout_is_threshold='0.5_2.0'")
    assert (masked["correction.kind"], masked["correction.threshold_lower"]) == ("masked", 0.5)
    assert settings(*GRPO, *SOME, f"{c}.bypass_mode=True")["learner.old_logprobs"] == "rollout"
    assert "correction.kind" not in settings(*GRPO, f"{c}.rollout_rs=token_k1")
    assert "rejected from update to update" in refusal(*GRPO, f"{c}.rollout_rs=token_k1", f"{c}.bypass_mode=True")
    cut = settings(*GRPO, f"{R}.top_p=0.9", f"{R}.top_k=-1", f"{R}.min_p=0.1")
    assert (cut["rollout.top_p"], cut["rollout.top_k"], cut["rollout.min_p"]) == (0.9, 0, 0.1)
    dynamic = settings(*GRPO, "algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches=0")
    assert (dynamic["filter.dynamic_sampling"], dynamic["filter.max_rounds"]) == (True, 10_000)


@pytest.mark.parametrize(("words", "why"), table("translation", "refused"))
def test_what_cannot_be_is_refused_by_name_with_what_to_do(words: tuple[str, ...], why: str) -> None:
    assert why in refusal(*GRPO, *SOME, *words)


def test_rewards_are_functions_models_and_what_dapo_adds() -> None:
    function = settings(*GRPO, "custom_reward_function.path=r.py", "+custom_reward_function.reward_kwargs.k=2")
    assert function["rewards.0"] == {"kind": "python", "path": "r.py:compute_score", "kwargs": {"k": 2}}
    newer = settings(*GRPO, "reward.custom_reward_function.path=pkg://a.b", "reward.custom_reward_function.name=f")
    assert newer["rewards.0"] == {"kind": "python", "path": "a.b:f"}
    model = settings(*GRPO, "reward_model.enable=True", "reward_model.model.path=org/rm")
    assert model["rewards.0"] == {"kind": "model", "path": "org/rm"}
    w = "reward_model.reward_kwargs"
    dapo = settings(
        *GRPO, "custom_reward_function.path=r.py", "reward_model.reward_manager=dapo",
        f"+{w}.overlong_buffer_cfg.enable=True", f"+{w}.overlong_buffer_cfg.len=64",
        f"+{w}.overlong_buffer_cfg.penalty_factor=0.5", f"+{w}.max_resp_len=512",
    )  # fmt: skip
    assert dapo["rewards.1"] == {"kind": "overlong", "buffer": 64, "weight": 0.5, "max_length": 512}
    assert dapo["eval.verifier"] == "compute_score"


def rows_of(folder: Path, *sources: str) -> str:
    file = folder / "rows.parquet"
    rows = [{"data_source": source, "prompt": "p", "reward_model": {"ground_truth": "1"}} for source in sources]
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return f"data.train_files={file}"


def test_the_reward_of_rows_is_chosen_by_their_source(tmp_path: Path) -> None:
    one = settings(*GRPO, rows_of(tmp_path, "openai/gsm8k"))
    assert one["rewards.0"] == {"kind": "numeric", "unmarked": False}
    assert "data.columns" not in one
    both = settings(*GRPO, rows_of(tmp_path, "openai/gsm8k", "DigitalLearningGmbH/MATH-lighteval"))
    assert both["rewards.0"] == {"kind": "math"}
    signed = settings(*GRPO, rows_of(tmp_path, "math_dapo", "aime24"))
    assert signed["rewards.0"] == {"kind": "math", "weight": 2.0}
    for sources, why in (
        (("codecontests",), "'codecontests' have no checker here"),
        (("mine",), "verl has no reward for it either"),
        (("openai/gsm8k", "math_dapo"), "have different rewards"),
    ):
        assert why in refusal(*GRPO, rows_of(tmp_path, *sources))


def test_lora_and_the_run() -> None:
    given = settings(*GRPO, f"{M}.lora_rank=8", f"{M}.target_modules=[q_proj,v_proj]")
    assert (given["lora.rank"], given["lora.alpha"], given["lora.targets"]) == (8, 16, ["q_proj", "v_proj"])
    run = settings(
        *GRPO, "trainer.total_epochs=3", "trainer.save_freq=-1", "trainer.test_freq=5", "trainer.val_before_train=False"
    )
    assert (run["run.epochs"], run["checkpoint.every"], run["eval.every"], run["eval.at_start"]) == (3, 0, 5, False)
    assert "run.epochs" not in settings(*GRPO, "trainer.total_epochs=3", "trainer.total_training_steps=7")
    assert settings(*GRPO, "trainer.logger=[console,tensorboard]")["tracking.to"] == ["tensorboard"]


def test_every_given_setting_stands_in_the_recipe() -> None:
    for name, command in COMMANDS.items():
        text = recipe_of(translated(*(f"{key}={value}" for key, value in command.items())))
        for key in command:
            assert key.lstrip("+").partition(".override_config.")[0] in text, (name, key)
