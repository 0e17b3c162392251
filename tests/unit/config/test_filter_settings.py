"""`[filter]`: what dynamic sampling goes with, and what the plan says of it."""

import pytest

from oncurve.base.errors import ConfigError
from oncurve.config.loading import load_config
from oncurve.config.sections import RunConfig
from oncurve.config.sentences.plan import plan
from oncurve.run.loop import dynamic_sampling
from oncurve.types import Score

ON = "filter.dynamic_sampling=true"


def loaded(*words: str) -> RunConfig:
    return load_config(None, [ON, "data.prompts_per_step=4", "rewards=[{kind='task'}]", *words])[0]


def said(*words: str) -> str:
    return " ".join(plan(loaded(*words)))


def test_it_is_refused_with_iterations_and_without_effect_a_bound_is_too() -> None:
    own = ["rewards=[{kind='model'}, {kind='task', name='truth', weight=0}]", "reward_model.kind=outcome"]
    with pytest.raises(ConfigError, match="a group that waits for the next iteration"):
        load_config(None, [ON, *own, "iterative.steps=5", "eval.verifier=truth", "reward_model.path=m"])
    with pytest.raises(ConfigError, match=r"filter\.max_rounds: set to no effect"):
        load_config(None, ["filter.dynamic_sampling=false", "filter.max_rounds=3"])


def test_the_plan_names_the_verifier_the_bound_and_the_worst_case() -> None:
    text = said("filter.max_rounds=5")
    assert "groups with right and wrong completions, right where 'task' gives 1" in text
    assert "up to 5 rounds of 4 prompts to find as many: at most 160 completions per step" in text
    assert "some groups are of the step before, so clipping can bind from the 1st update" in text
    assert "100 steps take at least 400 prompts" in text
    assert "note: filter" not in text
    assert "groups whose rewards differ (no reward is the verifier)" in said("rewards=[{kind='model', path='m'}]")


def test_the_verifier_decides_whatever_it_weighs_and_without_one_the_reward() -> None:
    shaped = "rewards=[{kind='task', name='truth', weight=0.5}, {kind='regex', pattern='w', name='form'}]"
    dynamic = dynamic_sampling(loaded(shaped, "filter.mask_truncated=true"))
    assert (dynamic.max_rounds, dynamic.mask_truncated) == (10, True)
    assert dynamic.correct is not None
    assert dynamic.correct(Score(0.5, parts={"truth": 1.0, "form": 0.0}))
    assert not dynamic.correct(Score(1.0, parts={"truth": 0.0, "form": 1.0}))
    without = dynamic_sampling(loaded("rewards=[{kind='model', path='m'}]"))
    assert without.correct is None
    assert dynamic_sampling(RunConfig()) is None
