from __future__ import annotations

from pathlib import Path

import pytest

from oncurve.data import InMemory
from oncurve.errors import ConfigError
from oncurve.run.checks import INERT, check_complete, inert, missing
from oncurve.run.config import RunConfig
from oncurve.run.loading import load_config, to_toml


def complaint(*overrides: str, recipe: str | Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rollout.group_size=1"], "rollout.group_size: a completion is graded against its siblings"),
        (["rollout.temperature=0"], "rollout.temperature: 0 makes all completions of a group the same"),
        (
            ["data.prompts_per_step=2", "learner.minibatches=3"],
            "learner.minibatches: minibatches are made of whole groups",
        ),
        (["data.system=S", "data.chat=never"], "data.chat: "),
        (["data.path=a", "data.eval_path=a"], "data.eval_path: held-out prompts cannot be the training prompts"),
        (["eval.every=5"], "eval.every: there are no held-out prompts to judge on"),
        (["eval.every=5", "data.kind=task", "data.eval_size=0"], "eval.every: there are no held-out prompts"),
    ],
)
def test_impossible_combinations_are_refused_with_the_reason(overrides: list[str], said: str):
    assert complaint(*overrides).startswith(said)


@pytest.mark.parametrize(
    "overrides",
    [
        ["eval.every=5", "data.path=a", "data.eval_path=b"],
        ["eval.every=5", "data.path=a", "data.eval_fraction=0.1"],
        ["eval.every=5", "data.kind=task"],
        ["data.system=S"],
        ["data.prompts_per_step=3", "learner.minibatches=3"],
    ],
)
def test_combinations_that_are_possible_load(overrides: list[str]):
    load_config(None, overrides)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["kl.coef=0", "kl.estimator=k1"], "kl.estimator"),
        (["kl.coef=0", "kl.where=loss"], "kl.where"),
        (["advantage.scale=none", "advantage.eps=0.1"], "advantage.eps"),
        (["advantage.scale=none", "advantage.ddof=0"], "advantage.ddof"),
        (["learner.passes=1", "learner.old_logprobs=rollout"], "learner.old_logprobs"),
        (["data.template={q}", "data.prompt_column=q"], "data.prompt_column"),
        (["data.path=a", "data.eval_path=b", "data.eval_fraction=0.1"], "data.eval_fraction"),
        (["eval.every=0", "eval.n=4"], "eval.n"),
        (["checkpoint.every=0", "checkpoint.keep=4"], "checkpoint.keep"),
        (["reference.every=0", "reference.mixup=0.5"], "reference.mixup"),
        (["kl.coef=0", "reference.every=10"], "reference.every"),
        (["kl.coef=0", "reference.mixup=0.5"], "reference.mixup"),
    ],
)
def test_a_key_made_meaningless_in_the_same_layer_is_refused(overrides: list[str], key: str):
    assert f"{key}: set to no effect: " in complaint(*overrides)
    assert "(the command line)" in complaint(*overrides)


def test_a_key_made_meaningless_in_the_same_file_is_refused_unless_another_layer_gives_it_a_meaning(tmp_path: Path):
    (tmp_path / "r.toml").write_text('[kl]\nestimator = "k2"\ncoef = 0.0\n')
    assert "kl.estimator: set to no effect: kl.coef = 0 means that there is no KL term" in complaint(
        recipe=tmp_path / "r.toml"
    )
    assert "r.toml)" in complaint(recipe=tmp_path / "r.toml")
    assert load_config(tmp_path / "r.toml", ["kl.coef=0.1"])[0].kl.estimator == "k2"


def test_over_layers_a_meaningless_key_is_no_error_and_the_plan_says_it(tmp_path: Path):
    (tmp_path / "r.toml").write_text('[kl]\nestimator = "k2"\ncoef = 0.1\n')
    config, _ = load_config(tmp_path / "r.toml", ["kl.coef=0"])
    assert inert(config) == ["kl.estimator has no effect: kl.coef = 0 means that there is no KL term"]
    assert inert(RunConfig()) == []


def test_a_resolved_file_may_hold_meaningless_keys(tmp_path: Path):
    config, _ = load_config(None, ["kl.coef=0"])
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load_config(tmp_path)[0] == config


def test_every_rule_names_keys_that_exist():
    from oncurve.run.config import SECTIONS

    for rule in INERT:
        for key in (*rule.keys, *rule.causes):
            section, name = key.split(".")
            assert any(name in cls.model_fields for cls in SECTIONS[section].kinds.values()), key


def test_what_a_run_misses_is_named():
    assert [line.split(":")[0] for line in missing(RunConfig())] == ["model.path", "data.path", "rewards"]
    assert "data.rows: missing" in missing(RunConfig(data=InMemory()))[1]
    config, _ = load_config(None, ["model.path=m", "data.path=d", "rewards=[{kind='math'}]"])
    check_complete(config)
    with pytest.raises(ConfigError, match=r"model\.path: missing"):
        check_complete(RunConfig())
