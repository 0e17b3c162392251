"""The simulation: what must hold for any setup, and small ones worked out by hand."""

from dataclasses import replace

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


def test_a_step_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="8 groups cannot be trained in 3 equal parts"):
        simulate(replace(EVEN, chunks=3))
