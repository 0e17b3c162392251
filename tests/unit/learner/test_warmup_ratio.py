"""`learner.warmup_ratio`: the warm-up as a share of the run's updates."""

import pytest

from fakes.tiny_policy import TinyLM
from oncurve.config import load_config
from oncurve.errors import ConfigError
from oncurve.learner import LearnerConfig
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models.loading.weights import loaded_from


@pytest.mark.parametrize(("ratio", "updates", "warmup"), [(0.1, 100, 10), (0.03, 100, 3), (0.1, 15, 2), (0.0, 50, 0)])
def test_the_share_is_rounded_up_to_a_whole_update(ratio: float, updates: int, warmup: int) -> None:
    assert LearnerConfig(warmup_ratio=ratio).warmup(updates) == warmup
    assert LearnerConfig(warmup_steps=7).warmup(updates) == 7


def test_it_needs_the_number_of_updates() -> None:
    def learner(total: int) -> object:
        parts = (loaded_from(TinyLM()).model, Clipped(), Regularizer(KLPenalty(coef=0.0)))
        return LearnerConfig(warmup_ratio=0.1).build(*parts, total_updates=total)

    assert learner(10) is not None
    with pytest.raises(ConfigError, match=r"learner\.warmup_ratio = 0\.1 needs to know how many updates"):
        learner(0)


def test_both_in_one_place_are_refused_and_the_later_layer_counts(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.warmup_ratio: learner\.warmup_steps says it in another way"):
        load_config(None, ["learner.warmup_steps=3", "learner.warmup_ratio=0.1"])
    with pytest.raises(ConfigError, match=r"learner\.warmup_ratio: learner\.warmup_steps says how long"):
        load_config(settings={"learner": LearnerConfig(warmup_steps=3, warmup_ratio=0.1)})
    recipe = tmp_path / "a.toml"
    recipe.write_text("[learner]\nwarmup_steps = 3\n")
    learner = load_config(recipe, ["learner.warmup_ratio=0.5"])[0].learner
    assert (learner.warmup_steps, learner.warmup_ratio) == (0, 0.5)
