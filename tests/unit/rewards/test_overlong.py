"""The soft punishment of long completions (DAPO, arXiv:2503.14476, eq. 13)."""

import pytest

from fakes.scoring import group, rewards_of
from oncurve.config import load_config
from oncurve.errors import ConfigError
from oncurve.rewards import Exact, Overlong, RewardSet


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 0.0), (80, 0.0), (81, -0.05), (85, -0.25), (90, -0.5), (100, -1.0), (110, -1.0)]
)
def test_the_punishment_falls_in_a_straight_line_within_the_buffer(length: int, expected: float) -> None:
    assert Overlong(buffer=20, max_length=100)(length) == pytest.approx(expected)


def test_it_counts_tokens_and_adds_to_other_rewards() -> None:
    tables = [{"kind": "exact"}, {"kind": "overlong", "buffer": 4, "max_length": 8, "weight": 0.5}]
    with RewardSet.build(tables) as rewards:
        (scored,) = rewards.score([group("4", "4" + 5 * " ", "4" + 9 * " ", "5")])
    assert rewards_of([scored]) == [1.0, 0.75, 0.5, 0.0]
    assert [score.parts["overlong"] for score in scored.scores] == [0.0, -0.5, -1.0, 0.0]
    assert scored.scores[0].weights == (1.0, 0.5)


def test_the_longest_completion_is_that_of_the_rollout() -> None:
    words = ["rollout.max_new_tokens=100", "rewards=[{kind='exact'}, {kind='overlong', buffer=20}]"]
    config, _ = load_config(None, words)
    assert config.rewards[1].max_length is None
    exact, overlong = config.fitted_rewards
    assert (exact, overlong) == (Exact(), Overlong(buffer=20, max_length=100))
    assert overlong(90) == -0.5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("buffer=101", "rewards.0.buffer: 101 tokens are more than the 100 of max_length"),
        ("buffer=20, max_length=120", "rewards.0.max_length: nothing is punished: completions have at most 100 tokens"),
    ],
)
def test_lengths_that_do_not_fit_are_refused_before_anything_is_loaded(settings: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["rollout.max_new_tokens=100", f"rewards=[{{kind='overlong', {settings}}}]"])
    assert str(caught.value).startswith(said)
