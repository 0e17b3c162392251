"""Rewards at the end of the range of floats, metrics of any name, steps that end nowhere: a right number or a fault."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from fakes.scoring import faults_of, group, rewards_of
from oncurve.advantages import group_advantages
from oncurve.metrics import Metrics
from oncurve.rewards import Accepts, InProcess, RewardSet, RewardSettings
from oncurve.rewards.component import LARGEST_REWARD
from oncurve.trainer.observe import observe_groups

EXTREME = [1e308, -1e308, 1.7976931348623157e308, 1e300, -1e300, 9e299, 1e155, -1e155, 0.0, 5e-324, 1.0]


@given(
    st.lists(st.sampled_from(EXTREME), min_size=1, max_size=8),
    st.sampled_from([1.0, -1.0, 1e8, 1e-38, 1e38]),
    st.booleans(),
)
def test_finite_rewards_are_numbers_or_faults(values: list[float], weight: float, batch: bool) -> None:
    values.append(0.0)  # where all of them are too large, the step has no reward, and that is an error

    def one(completion_ids: Sequence[int]) -> float:
        return values[len(completion_ids) - 1]

    def many(completions: Sequence[str], completion_ids: Sequence[Sequence[int]], log_metric: Any) -> list[float]:
        for value in values:
            log_metric("value", value)
        return [one(ids) for ids in completion_ids]

    texts = ["x" * (index + 1) for index in range(len(values))]
    settings = {"kind": "python", "function": many if batch else one, "weight": weight}
    with RewardSet.build([settings, lambda completion_ids: 1.0 + 0.0 * len(values)]) as rewards:
        scored = rewards.score([group(*texts)])
        assert all(map(math.isfinite, rewards.metrics.values()))
    for value, reward, fault in zip(values, rewards_of(scored), faults_of(scored), strict=True):
        usable = abs(value) <= LARGEST_REWARD and abs(value * weight) <= LARGEST_REWARD
        assert (reward, fault) == ((math.fsum([value * weight, 1.0]), None) if usable else (None, "not_finite"))
    metrics = Metrics()
    observe_groups(metrics, scored, dropped=0)
    for _ in range(3):
        observe_groups(metrics, scored, dropped=0)
    assert all(map(math.isfinite, metrics.result().values()))


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("factor", [1e150, 1e200, 1e290, 2.0**1000])
def test_advantages_do_not_depend_on_the_size_of_rewards(scale: Any, factor: float) -> None:
    rewards = torch.tensor([0.0, 1.0, 3.0, -2.0, 1.0, 1.0], dtype=torch.float64)
    valid, groups = torch.tensor([True] * 5 + [False]), torch.tensor([0, 0, 1, 1, 1, 1])
    expected = group_advantages(rewards, valid, groups, scale, 1, 0.0)
    assert expected.abs().max() > 0.5
    found = group_advantages(rewards * factor, valid, groups, scale)
    torch.testing.assert_close(found, expected)


class EndsAnywhere(RewardSettings):
    """A kind whose steps end where it is told."""

    ends: tuple[int, ...] = ()

    def start(self, base: Path | None) -> InProcess:
        return InProcess(self._item, Accepts(needs=(("completion",),)))

    def _item(self, item: Any) -> dict[str, Any]:
        ends = self.ends if item["completion"] == "bad" else (3,)
        return {"reward": 1.0, "step_ends": ends, "step_rewards": [1.0] * len(ends)}


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5), min_size=1, max_size=4))
def test_steps_that_end_outside_the_text_are_a_fault_of_that_completion(ends: list[int]) -> None:
    with RewardSet.build([EndsAnywhere(ends=tuple(ends))]) as rewards:
        rewards.locate = lambda prompt, completion, offsets: tuple(offset - 1 for offset in offsets)
        scored = rewards.score([group("bad", "abc")])
    fits = ends == sorted(set(ends)) and ends[0] > 0 and ends[-1] <= 3
    assert faults_of(scored) == [None if fits else "type", None]
