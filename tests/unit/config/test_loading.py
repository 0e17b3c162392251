from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.cluster import CLUSTER_KINDS
from oncurve.components import kind_of
from oncurve.config.loading import load_config, to_toml
from oncurve.config.sections import RunConfig
from oncurve.data import InMemory, TaskRows
from oncurve.losses import Clipped, Reinforce, SequenceProduct


def config(*overrides: str, recipe: str | Path | None = None, **settings: Any) -> RunConfig:
    return load_config(recipe, overrides, settings=settings)[0]


def complaint(*overrides: str, recipe: str | Path | None = None, **settings: Any) -> str:
    return message_of(ConfigError, config, *overrides, recipe=recipe, **settings)


def test_later_layers_win(tmp_path: Path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('extends = "grpo_paper"\n[kl]\ncoef = 0.02\n[run]\nseed = 1\n')
    made = config("run.seed=3", recipe=recipe, run={"seed": 2, "steps": 7})
    assert made.rollout.group_size == 64
    assert made.kl.coef == 0.02
    assert made.run.steps == 7
    assert made.run.seed == 3


def test_a_yaml_recipe_reads_as_the_same_toml_one(tmp_path: Path):
    (tmp_path / "r.toml").write_text("[learner]\nlearning_rate = 1e-6\n[kl]\ncoef = 0.0\n[[rewards]]\nkind = 'math'\n")
    (tmp_path / "r.yaml").write_text("learner: {learning_rate: 1e-6}\nkl: {coef: 0}\nrewards:\n  - kind: math\n")
    assert config(recipe=tmp_path / "r.yaml") == config(recipe=tmp_path / "r.toml")


def test_rewards_are_replaced_as_a_whole_or_changed_by_item():
    two = ["rewards=[{kind='math'}, {kind='math', weight=0.5}]"]
    assert [reward.weight for reward in config(*two).rewards] == [1.0, 0.5]
    assert [reward.weight for reward in config(*two, "rewards.0.weight=2").rewards] == [2.0, 0.5]
    assert len(config(*two, "rewards=[]").rewards) == 0


def test_a_changed_kind_keeps_what_it_has_a_key_for():
    made = config("objective.kind=sequence_product", objective={"kind": "clipped", "clip_high": 0.3})
    assert made.objective == SequenceProduct(clip_high=0.3)
    assert config("objective.kind=reinforce", recipe="grpo").objective == Reinforce()
    data = config("data.kind=task", data={"path": "a.jsonl", "prompts_per_step": 4}).data
    assert data == TaskRows(prompts_per_step=4)
    assert "objective.clip_high: unknown key" in complaint("objective.kind=reinforce", "objective.clip_high=0.3")


def test_a_key_that_only_other_kinds_have_names_them():
    said = complaint("critic.warmup_steps=3", "critic.warmup_stpes=3")
    assert "critic.warmup_steps: unknown key of the kind 'none'; set critic.kind to own or shared, or leave" in said
    assert "critic.warmup_stpes: unknown key;" in said


def test_a_cluster_with_keys_and_without_a_kind_is_this_machine_or_the_ray_whose_address_it_has():
    two = {"cluster": {"rollout_workers": 2}}
    assert kind_of(config("cluster.rollout_workers=2", "cluster.learner_ranks=2").cluster, CLUSTER_KINDS) == "host"
    assert kind_of(config("cluster.address=10.0.0.1:6379", **two).cluster, CLUSTER_KINDS) == "ray"
    assert kind_of(config("cluster.kind=ray", **two).cluster, CLUSTER_KINDS) == "ray"
    assert config("cluster.kind=ray", **two).cluster.facts.workers == 2
    assert config("cluster.kind=none", **two).cluster.facts.alone
    assert config().cluster.facts.alone
    assert "cluster.learner_ranks: unknown key of the kind 'none'; set cluster.kind to host or ray" in complaint(
        "cluster.kind=none", "cluster.learner_ranks=2"
    )


def test_a_key_of_ones_own_class_that_only_shares_its_name_with_a_presets_does_not_get_its_value(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "r.toml").write_text('extends = "grpo"\n[advantage]\nkind = "mine.py:Mine"\n')
    preset = config(recipe="grpo").advantage
    mine = config(recipe=tmp_path / "r.toml").advantage
    assert (mine.scale, mine.eps) == (3.0, preset.eps)


def test_a_component_from_python_is_a_section():
    made = config("objective.clip_low=0.1", objective=Clipped(clip_high=0.4), data=InMemory(rows=("a",)))
    assert made.objective == Clipped(clip_low=0.1, clip_high=0.4)
    assert made.data == InMemory(rows=("a",))


MINE = """
from oncurve.components import Component

class Mine(Component):
    scale: float = 3.0
    eps: float = 7.0
    min_valid_completions = property(lambda self: 2)

    def __call__(self, batch):
        return batch.rewards

class Median(Mine):
    share: float = 0.5
    min_valid_completions = property(lambda self: 3)

class NoAdvantage(Component):
    pass
"""


def test_a_kind_from_a_file_beside_the_recipe_is_built_checked_and_written(tmp_path: Path):
    (tmp_path / "credit.py").write_text(MINE)
    (tmp_path / "r.toml").write_text('[advantage]\nkind = "credit.py:Median"\nshare = 0.25\n')
    made = config(recipe=tmp_path / "r.toml")
    assert made.advantage.share == 0.25
    written = tmp_path / "elsewhere.toml"
    written.parent.mkdir(exist_ok=True)
    written.write_text(to_toml(made))
    assert config(recipe=written) == made
    assert "rollout.group_size" in complaint("rollout.group_size=2", recipe=tmp_path / "r.toml")
    said = complaint(f"advantage.kind={tmp_path}/credit.py:NoAdvantage")
    assert (
        said == "advantage.kind: NoAdvantage lacks __call__ and min_valid_completions, so it is no advantage "
        "(the command line)"
    )


@pytest.mark.parametrize(("override", "said"), table("loading", "what_is_wrong_is_said_with_its_place"))
def test_what_is_wrong_is_said_with_its_place(override: str, said: str):
    assert said in complaint(override)


def test_what_is_wrong_in_several_sections_is_said_at_once(tmp_path: Path):
    (tmp_path / "r.toml").write_text("[run]\nstps = 3\n[kl]\ncoef = -1\nestimator = 3\n[[rewards]]\nkind = 'maths'\n")
    said = complaint(recipe=tmp_path / "r.toml").splitlines()
    assert [line.split(":")[0] for line in said] == ["run.stps", "kl.estimator", "kl.coef", "rewards.0.kind"]


@pytest.mark.parametrize("preset", ["grpo", "grpo_paper", "dr_grpo", "rlox"])
def test_the_resolved_file_loads_to_the_same_configuration(tmp_path: Path, preset: str):
    words = ["rewards=[{kind='math', weight=0.5}]", 'data.template={question}\n"?"', "rollout.stop=['\\n\\n', 'é']"]
    made = config(*words, "data.path=train.jsonl", 'run.name="a b"', recipe=preset)
    (tmp_path / "config.toml").write_text(to_toml(made), encoding="utf-8")
    again, folder = load_config(tmp_path)
    assert again == made
    assert to_toml(again) == to_toml(made)
    assert folder == tmp_path


def test_a_third_part_of_a_key_changes_one_entry_of_any_setting_that_is_a_table():
    judge = (
        "rewards=[{kind='model_judge', url='http://localhost:1/v1', model='m', template='{{ completion }}', field='s'}]"
    )
    found, _ = load_config(None, ["data.columns.prompt=q", judge, "rewards.0.extra_body.top_k=3"])
    assert found.data.columns == {"prompt": "q"}
    assert found.rewards[0].extra_body == {"top_k": 3}  # type: ignore[attr-defined]
