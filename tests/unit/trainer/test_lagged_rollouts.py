"""Steps that train what earlier weights wrote: the tokens, the numbers and the weights of plain sequential code."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.killed_runs import TIMES, raw
from fakes.loops import make_loop
from oncurve.base.errors import RewardError
from oncurve.rollout import InProcessEngine
from oncurve.trainer import Checkpoints, DynamicSampling, HeldOut, Recorder, StepResult, Trainer
from oracles.plain_lag import PlainLag

pytestmark = pytest.mark.slow

STEPS = 8


def numbers(result: StepResult) -> dict[str, float]:
    return {
        name: value for name, value in result.metrics.items() if name not in TIMES and not name.startswith("cluster/")
    }


def weights(loop: Trainer) -> dict[str, bytes]:
    return {name: raw(tensor) for name, tensor in loop.learner.model.module.state_dict().items()}


@contextmanager
def lagging(lag: int, ahead: bool, **settings: Any) -> Iterator[Trainer]:
    loop = make_loop(steps=STEPS, lag={"lag": lag, "ahead": ahead}, **settings)
    try:
        yield loop
    finally:
        loop.groups.close()


def trained(loop: Trainer) -> list[StepResult]:
    found: list[StepResult] = []
    loop.observers = (found.append,)
    assert loop.train() is None
    return found


def same(first: list[StepResult], second: list[StepResult]) -> None:
    assert [each.groups for each in first] == [each.groups for each in second]  # tokens, log-probs, versions, rewards
    assert [numbers(each) for each in first] == [numbers(each) for each in second]


SETTINGS = [{}, {"config": {"ppo_epochs": 2}}, {"dynamic": DynamicSampling(20, None)}, {"top_p": 0.8}]


@pytest.mark.parametrize(("lag", "settings"), [(1, {}), *((2, settings) for settings in SETTINGS)])
def test_a_lag_is_a_list_of_earlier_weights(lag: int, settings: dict[str, Any]) -> None:
    plain = make_loop(steps=STEPS, **settings)
    plain.groups.engine = PlainLag(plain.groups.engine, lag)
    expected = trained(plain)
    present = trained(make_loop(steps=STEPS, **settings))
    assert expected[-1].groups != present[-1].groups
    for ahead in (False, True):
        with lagging(lag, ahead, **settings) as loop:
            same(trained(loop), expected)
            assert weights(loop) == weights(plain)


def kept_in(loop: Trainer, folder: Path) -> Trainer:
    """The loop, which goes on from the newest checkpoint in `folder`, if there is one, and writes there."""
    loop.checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    found = loop.checkpoints.restore(loop.learner, loop.outer, loop.groups)
    if found is not None:
        loop.state = found[0]
    loop.recorder = Recorder(folder, loop.state, refusals=loop.refusals)
    return loop


@pytest.mark.parametrize("stops", [(1,), (3, 4), (2, 5, 7)])
def test_a_run_that_is_taken_up_again_or_made_longer_is_the_run_of_one_go(
    tmp_path: Path, stops: tuple[int, ...]
) -> None:
    dynamic = {"dynamic": DynamicSampling(20, None)}
    with lagging(2, True, **dynamic) as loop:
        expected = trained(loop)
        final = weights(loop)
    found: list[StepResult] = []
    for number, stop in enumerate((*stops, STEPS)):
        lag = {"lag": 2, "ahead": number % 2 == 1}
        loop = kept_in(make_loop(steps=stop, lag=lag, **dynamic), tmp_path)
        try:
            found += trained(loop)
        finally:
            loop.groups.close()
    same(found, expected)
    assert weights(loop) == final
    kept = sorted((tmp_path / "checkpoints" / "frozen").iterdir())
    assert len(kept) == 3  # the two newest checkpoints need those after steps 5 and 6, and 6 and 7


def test_what_goes_wrong_ahead_of_its_step_is_raised_when_the_step_needs_it(tmp_path: Path) -> None:
    calls: list[int] = []

    def reward(completions: Any, prompts: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 4:
            raise RewardError("the fourth call")
        return [float(len(set(each.tolist()))) for each in completions]

    with lagging(2, True, reward=reward) as loop:
        loop = kept_in(loop, tmp_path)
        found: list[StepResult] = []
        loop.observers = (found.append,)
        with pytest.raises(RewardError, match="the fourth call"):
            loop.train()
        assert len(found) == loop.state.step == 3
        assert loop.checkpoints.newest == 3
        assert len(calls) == 4  # nothing is collected after it


def test_an_evaluation_has_the_newest_weights_and_changes_nothing() -> None:
    with lagging(2, True) as loop:
        expected = trained(loop)
    seen: list[int] = []

    def evaluate(step: int) -> dict[str, float]:
        loop.groups.engine.follow(loop.learner.weights())
        (group,) = loop.groups.engine.generate([expected[0].groups[0].prompt], -1)
        seen.append(group.completions[0].policy_version)
        return {}

    with lagging(2, True, config={"held_out": HeldOut(every=1)}) as loop:
        loop.evaluator = evaluate
        same(trained(loop), expected)
    assert seen == list(range(1, STEPS + 1))


class Slow(InProcessEngine):
    """Says when it samples for a step ahead, and waits there until it may go on."""

    reached, go_on = threading.Event(), threading.Event()

    def generate(self, prompts: Any, draw: int, *more: Any) -> Any:
        if draw == 1:
            self.reached.set()
            assert self.go_on.wait(30)
        return super().generate(prompts, draw, *more)


def test_groups_of_the_next_step_are_sampled_while_a_step_trains() -> None:
    with lagging(1, True) as loop:
        loop.groups.engine = Slow(loop.groups.engine.sampling, seed=5)
        update = loop.learner.update

        def updating(batch: Any) -> Any:
            assert Slow.reached.wait(30)  # the rollout of step 2 has begun within the update of step 1
            Slow.go_on.set()
            return update(batch)

        loop.learner.update = updating  # type: ignore[method-assign]
        found = trained(loop)
    with lagging(1, False) as loop:
        same(found, trained(loop))


def test_completions_name_the_weights_that_sampled_them() -> None:
    with lagging(2, True) as loop:
        found = trained(loop)
    versions = [{each.policy_version for group in step.groups for each in group.completions} for step in found]
    assert versions == [{0}, {0}, {0}, {1}, {2}, {3}, {4}, {5}]
    assert [step.metrics["cluster/lag_max"] for step in found] == [0, 1, 2, 2, 2, 2, 2, 2]
    assert [step.metrics["cluster/lag_mean"] for step in found] == [0, 1, 2, 2, 2, 2, 2, 2]


def test_without_a_lag_the_bits_are_those_of_a_run_without_the_setting() -> None:
    with lagging(0, True) as loop:
        same(trained(loop), trained(make_loop(steps=STEPS)))
