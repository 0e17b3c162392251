"""The simulation: what must hold for any setup, and small ones worked out by hand."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from bench.scaling.simulation import Lengths, Setup, Simulation, simulate

EVEN = Setup(8, 4, Lengths(100, 0.0, 1000), 2, 0.01, 0.001, 3.0)
SPREAD = replace(EVEN, lengths=Lengths(100, 0.8, 1000))


def test_without_lag_a_step_is_rollout_and_training() -> None:
    # 8 groups of 4 rows on 2 engines: 16 rows each, 100 tokens of 0.01 + 16 · 0.001 seconds; then 3 seconds.
    found = simulate(EVEN)
    assert found.step_seconds == pytest.approx(100 * 0.026 + 3.0)
    assert found.rollout_busy == pytest.approx(2.6 / 5.6)
    assert found.trainer_busy == pytest.approx(3.0 / 5.6)


def test_with_lag_a_step_is_the_longer_of_the_two() -> None:
    assert simulate(replace(EVEN, lag=1.0)).step_seconds == pytest.approx(3.0)
    slow = simulate(replace(EVEN, lag=1.0, train_seconds=1.0))
    assert slow.step_seconds == pytest.approx(2.6, rel=0.4)
    assert slow.step_seconds < simulate(replace(EVEN, train_seconds=1.0)).step_seconds


@pytest.mark.parametrize("lag", [1.0, 2.0])
def test_whole_batches_are_decoded_one_after_the_other(lag: float) -> None:
    # As above: 2.6 seconds of a batch's rollout, in which a shorter training hides.
    batches = replace(EVEN, lag=lag, whole=True)
    assert simulate(replace(batches, train_seconds=1.0)).step_seconds == pytest.approx(2.6)
    assert simulate(batches).step_seconds == pytest.approx(3.0)
    simulation = Simulation(replace(SPREAD, lag=lag, whole=True, train_seconds=1.0))
    simulation.run(4)
    assert {group // SPREAD.prompts for group in simulation.left} == {simulation.ordered // SPREAD.prompts}


def test_a_handover_stops_both() -> None:
    assert simulate(replace(EVEN, handover_seconds=0.5)).step_seconds == pytest.approx(6.1)
    assert simulate(replace(EVEN, lag=1.0, handover_seconds=0.5)).step_seconds == pytest.approx(3.5)


@pytest.mark.parametrize("lag", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("windowed", [False, True])
def test_groups_are_neither_lost_nor_made(lag: float, windowed: bool) -> None:
    setup = replace(SPREAD, lag=lag, windowed=windowed, chunks=4)
    simulation = Simulation(setup, seed=3)
    found = simulation.run(4)
    assert found.trained == setup.prompts * (3 + 4)
    assert found.trained <= found.finished <= found.started
    assert found.started == found.finished + len(simulation.left)
    assert found.started <= setup.prompts * (7 + 1 + lag)
    assert sum(simulation.left.values()) == sum(len(engine.ends) for engine in simulation.engines)


@pytest.mark.parametrize("lag", [0.0, 1.0])
def test_more_engines_are_never_slower(lag: float) -> None:
    steps = [simulate(replace(EVEN, lag=lag, engines=count)).step_seconds for count in (1, 2, 4, 8)]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(steps))
    assert steps[-1] < steps[0]
    spread = [simulate(replace(SPREAD, lag=lag, engines=count)).step_seconds for count in (1, 2, 4, 8)]
    assert all(later <= 1.02 * earlier for earlier, later in pairwise(spread))


def test_a_larger_lag_is_never_slower_and_never_faster_than_the_trainer() -> None:
    steps = [simulate(replace(SPREAD, lag=lag), 8).step_seconds for lag in (0.0, 1.0, 2.0, 4.0)]
    assert all(later <= 1.02 * earlier for earlier, later in pairwise(steps))
    assert steps[-1] >= SPREAD.train_seconds - 1e-9


def test_by_arrival_is_not_slower_than_in_order() -> None:
    setup = replace(SPREAD, lag=1.0, train_seconds=0.5, chunks=4)
    assert simulate(replace(setup, windowed=True), 8).step_seconds <= 1.02 * simulate(setup, 8).step_seconds


def test_a_place_that_is_free_is_taken() -> None:
    # One engine of 4 places and two groups of 4 rows: one after the other, whatever the lag allows.
    setup = Setup(2, 4, Lengths(10, 0.0, 10), 1, 1.0, 0.0, 0.0, rows=4)
    assert simulate(setup).step_seconds == pytest.approx(20.0)


def test_the_same_seed_gives_the_same_steps() -> None:
    assert simulate(SPREAD, seed=1) == simulate(SPREAD, seed=1) != simulate(SPREAD, seed=2)


def test_lengths_keep_to_their_limit_and_mean() -> None:
    draw = random.Random(0)
    drawn = [Lengths(200, 0.5, 400).draw(draw) for _ in range(4000)]
    assert max(drawn) == 400
    assert min(drawn) >= 1
    whole = [Lengths(200, 0.5, 10**6).draw(draw) for _ in range(4000)]
    assert sum(whole) / len(whole) == pytest.approx(200, rel=0.05)


def test_a_step_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="8 groups cannot be trained in 3 equal parts"):
        simulate(replace(EVEN, chunks=3))
