"""Steps that train the groups which real workers have finished first."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes.deadly_engine import DeadlyEngine, SlowEngine, order, released
from fakes.loops import PROMPTS, make_loop
from oncurve import durable
from oncurve.base.errors import ConfigError
from oncurve.cluster import HostCluster
from oncurve.data import PromptOrder
from oncurve.rollout import Sampling
from oncurve.trainer import Checkpoints, HeldOut, LaggedRollouts, Recorder, StepResult, Trainer, WindowedRollouts

LAG, SIZE, STEPS = 2, 3, 8
SAMPLING = Sampling(group_size=4, max_new_tokens=4)


@contextmanager
def windowed(
    orders: Path, steps: int = STEPS, workers: int = 2, partial_tokens: int = 0, **settings: Any
) -> Iterator[Trainer]:
    loop = make_loop(steps=steps, prompts=SIZE, parts={"rollouts": WindowedRollouts(LAG)}, **settings)
    kind = SlowEngine if partial_tokens else DeadlyEngine
    sampling = SAMPLING.model_copy(update={"max_new_tokens": partial_tokens or SAMPLING.max_new_tokens})
    build = partial(kind, orders, os.getpid(), sampling, 5)
    cluster = HostCluster(
        rollout_workers=workers,
        shard_groups=1,
        lag=LAG,
        order="window",
        partial=partial_tokens > 0,
    )
    loop.engine = cluster.rollout_engine(build(), build, sampling)
    try:
        yield loop
    finally:
        loop.rollouts.close()
        loop.engine.close()


def trained(loop: Trainer) -> list[StepResult]:
    found: list[StepResult] = []
    loop.observers = (found.append, *loop.observers)
    assert loop.train() is None
    return found


def prompts_of(results: list[StepResult]) -> list[list[int]]:
    return [[group.prompt.id for group in step.groups] for step in results]


def in_order(steps: int) -> list[int]:
    return [prompt.id for prompt in PromptOrder(PROMPTS, 5).take(0, SIZE * steps)[0]]


def check(results: list[StepResult]) -> None:
    """Every prompt is trained as often as its order has it, and by no weights that are too old."""
    ids = [number for step in prompts_of(results) for number in step]
    assert Counter(ids) == Counter(in_order(len(results)))
    for step in results:
        assert len(step.groups) == SIZE
        versions = [each.policy_version for group in step.groups for each in group.completions]
        assert step.step - 1 - LAG <= min(versions) <= max(versions) <= step.step - 1
        assert step.metrics["cluster/lag_max"] <= LAG


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    folder = tmp_path / "orders"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "action", [pytest.param("none", marks=pytest.mark.slow), "hold", pytest.param("SIGKILL", marks=pytest.mark.slow)]
)
def test_no_step_waits_for_a_group_that_others_can_replace(
    orders: Path, action: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if action != "none":
        order(orders, action)
    with windowed(orders) as loop:
        if action == "hold":  # a worker's first group is finished only after the steps that can do without it

            def release(result: StepResult) -> None:
                if result.step == LAG:
                    released(orders).touch()

            loop.observers = (release,)
        found = trained(loop)
    check(found)
    if action == "hold":
        early = {number for step in prompts_of(found)[:LAG] for number in step}
        (held,) = set(in_order(1)[:2]) - early  # one of the two workers was faster to take the order
        assert prompts_of(found)[LAG].count(held) == 1
        assert found[LAG].metrics["cluster/lag_max"] == LAG
    if action == "SIGKILL":
        assert sum(step.metrics.get("cluster/shards_redone", 0.0) for step in found) == 1
        said = capfd.readouterr().err
        assert "a worker was lost: it was killed by signal SIGKILL; the run goes on" in said
        assert "same bits" not in said


@pytest.mark.slow
def test_a_run_that_is_taken_up_again_trains_the_prompts_that_were_left(orders: Path, tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(result: StepResult) -> None:
        if result.step == 2:
            raise StoppedError

    found: list[StepResult] = []
    order(orders, "hold")
    for attempt in range(2):
        with windowed(orders) as loop:
            loop.checkpoints = Checkpoints(tmp_path / "checkpoints", keep=0)
            restored = loop.checkpoints.restore(loop.learner, loop.outer, loop.rollouts)
            if restored is not None:
                loop.state = restored[0]
            loop.recorder = Recorder(tmp_path, loop.state, refusals=loop.refusals)
            if attempt:
                found += trained(loop)
            else:
                loop.observers = (found.append, stop)
                with pytest.raises(StoppedError):
                    loop.train()
        record = durable.read_json(tmp_path / "checkpoints" / f"step-{2 if not attempt else STEPS:06d}" / "state.json")
        waiting = record["rollouts"]["waiting"]
        assert len(waiting) >= SIZE * (1 if not attempt else 0)
        released(orders).touch()
    assert waiting == []
    check(found)


@pytest.mark.slow
def test_a_loop_may_train_in_several_stretches_and_evaluate_between_steps(orders: Path) -> None:
    seen: list[int] = []
    with windowed(orders, steps=4, config={"held_out": HeldOut(every=2)}) as loop:

        def evaluate(step: int) -> dict[str, float]:
            loop.engine.follow(loop.learner.weights())
            (group,) = loop.engine.generate([PROMPTS[0]], -1)
            seen.append(group.completions[0].policy_version)
            return {}

        loop.evaluator = evaluate
        found = trained(loop)
        loop.config = type(loop.config)(**{**vars(loop.config), "steps": STEPS})
        loop.observers = ()
        found += trained(loop)
    check(found)
    assert seen == [2, 4, 6, 8]


def test_an_engine_that_takes_no_prompts_meanwhile_is_refused() -> None:
    loop = make_loop(parts={"rollouts": WindowedRollouts(1)})
    with pytest.raises(ConfigError, match=r"cluster\.order: InProcessEngine takes no prompts"):
        loop.train()


@pytest.mark.slow
def test_the_order_is_another_than_that_of_a_lag(orders: Path) -> None:
    order(orders, "hold")
    with windowed(orders) as loop:
        loop.observers = (lambda result: released(orders).touch(),)
        window = prompts_of(trained(loop))
    exact = make_loop(steps=STEPS, prompts=SIZE, parts={"rollouts": LaggedRollouts(LAG, ahead=False)})
    assert prompts_of(trained(exact)) == [in_order(STEPS)[n * SIZE : (n + 1) * SIZE] for n in range(STEPS)]
    assert window != prompts_of(trained(make_loop(steps=STEPS, prompts=SIZE)))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_completions_are_continued_by_new_weights(orders: Path, killed: bool) -> None:
    """Between the first and the last token of some completions the weights change: their log-probs are of both."""
    if killed:
        order(orders, "SIGKILL")
    with windowed(orders, partial_tokens=40) as loop:
        found = trained(loop)
    check(found)
    assert sum(step.metrics.get("cluster/completions_continued", 0.0) for step in found) > 0
    for step in found:
        for group in step.groups:
            assert len(group.completions) == 4
            assert all(len(row.ids) == len(row.logprobs) == 40 for row in group.completions)
