"""`[cluster]`: what the plan says of it, and that a lag is a part of the result."""

import pytest

from oncurve.base.errors import ConfigError
from oncurve.config.loading import load_config
from oncurve.config.sentences.plan import plan

HOST = ("cluster.kind=host", "rewards=[{kind='task'}]")


def said(*words: str) -> str:
    return " ".join(plan(load_config(None, [*HOST, *words])[0]))


def test_the_plan_says_what_a_step_trains_and_whether_that_saves_time() -> None:
    text = said("cluster.lag=2", "cluster.rollout_workers=3")
    assert "Step n trains what the weights after step n - 3 wrote, exactly; those of up to 2 steps ahead" in text
    assert "without rollout_workers that saves no time" in said("cluster.lag=1")
    assert "wrote, exactly" not in said()


def test_a_lag_that_nothing_corrects_is_noted() -> None:
    note = "note: cluster.lag = 1: the older weights that sample are the old policy of the objective's ratio"
    text = said("cluster.lag=1")
    assert note in text
    assert "completions are by older weights (cluster.lag), so clipping can bind from the 1st update" in text
    none = "note: cluster.lag = 1: nothing corrects for the older weights that sample; set correction.kind"
    assert none in said("cluster.lag=1", "objective.kind=reinforce")
    text = said("cluster.lag=1", "correction.kind=truncated")
    assert note not in text
    assert "the ratio is 1 and clipping cannot bind" in text
    assert note not in said()


def test_ranks_that_divide_the_model_need_no_gradient_shards() -> None:
    assert "An update is made by 9 processes" in said("cluster.learner_ranks=9", "cluster.sharding=fsdp")
    with pytest.raises(ConfigError, match=r"cluster.learner_ranks: a rank without a shard"):
        said("cluster.learner_ranks=9")


def test_workers_without_a_shard_are_noted() -> None:
    note = "note: of the 5 workers 3 will have nothing to do: the 12 groups of a step are decoded in fewer shards"
    assert note in said("cluster.rollout_workers=5", "data.prompts_per_step=12")
    assert "nothing to do" not in said("cluster.rollout_workers=2", "data.prompts_per_step=12")
    assert "nothing to do" not in said(
        "cluster.rollout_workers=5", "data.prompts_per_step=12", "cluster.shard_groups=2"
    )


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["cluster.rollout_gpus=2"], "cluster.rollout_workers=0"),
        (["cluster.gradient_shards=4"], "cluster.sharding=fsdp"),
        (["cluster.silence_seconds=5"], "cluster.learner_ranks=1"),
        (["cluster.wait_seconds=60"], "cluster.rollout_workers=0"),
    ],
)
def test_keys_of_processes_that_there_are_not_are_noted_or_refused(words: list[str], cause: str) -> None:
    key = words[0].partition("=")[0]
    more = {"kind": "host", "sharding": "fsdp"} if "sharding" in cause else {"kind": "host"}
    config, _ = load_config(None, words, settings={"cluster": more, "rewards": [{"kind": "task"}]})
    assert f"note: {key} has no effect: " in " ".join(plan(config))
    with pytest.raises(ConfigError, match=rf"{key}: set to no effect: "):
        said(*words, cause)
    assert "has no effect" not in said(*words, "cluster.rollout_workers=2", "cluster.learner_ranks=2")
