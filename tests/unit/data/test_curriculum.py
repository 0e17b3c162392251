"""Prompts by their pass rates: the weights, the draw, and a run that is taken up again."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.killed_runs import raw
from fakes.loops import PROMPTS, make_loop
from oncurve.data import PassRateOrder, counted, shares
from oncurve.randomness import permutation
from oncurve.trainer import Checkpoints, Trainer, TrainerState
from oncurve.types import Completion, Group, Score

NUMBERS = [prompt.id for prompt in PROMPTS]


def order(floor: float = 0.05, seed: int = 5) -> PassRateOrder:
    return PassRateOrder(PROMPTS, seed, NUMBERS, floor)


@pytest.mark.parametrize("floor", [0.05, 1.0])
def test_without_counts_it_is_the_uniform_order(floor: float) -> None:
    taken, cursor = order(floor).take(0, 17)
    assert [prompt.id for prompt in taken] == permutation(5, 0, 17).tolist()
    assert cursor == 17
    assert {prompt.id for prompt in order(floor).take(3, 20)[0]} == set(NUMBERS)  # more than there are


def test_prompts_are_drawn_in_proportion_to_their_weights() -> None:
    counts = {0: (9, 9), 1: (0, 18), 2: (5, 10), 3: (2, 6), 99: (1, 2)}
    rates = {number: (right + 1) / (seen + 2) for number, (right, seen) in counts.items()}
    weights = {n: rates[n] * (1 - rates[n]) + 0.05 if n in rates else 0.3 for n in NUMBERS}
    assert weights[2] == pytest.approx(0.3)
    assert weights[0] == pytest.approx(10 / 121 + 0.05)
    draws, curriculum = 2_000, order()
    first = Counter(curriculum.take(cursor, 1, counts)[0][0].id for cursor in range(draws))
    for number, weight in weights.items():
        expected = draws * weight / sum(weights.values())
        assert abs(first[number] - expected) < 5 * expected**0.5


def test_right_and_wrong_completions_are_counted_and_others_are_not() -> None:
    completion = Completion((1,), "", (0.0,), "eos", 0, 0)
    scores = (Score(1.0), Score(0.0), Score(0.5), Score(1.0, valid=False))
    group = Group(PROMPTS[3], (completion,) * 4, scores)
    right = {1.0: True, 0.0: False, 0.5: None}
    found = counted({3: (2, 2), 4: (0, 3), 5: (1, 1)}, [group], lambda score: right[score.reward])
    assert found == {3: (3, 4), 4: (0, 3), 5: (1, 1)}
    assert shares(found) == {
        "curriculum/always_right": pytest.approx(1 / 3),
        "curriculum/always_wrong": pytest.approx(1 / 3),
    }
    state = TrainerState(step=2, counts=found)
    assert TrainerState.from_json(json.loads(json.dumps(state.to_json()))) == state


def trained(folder: Path, stops: tuple[int, ...], **settings: Any) -> tuple[Trainer, list[list[int]]]:
    """A run of eight steps that is taken up again after each of `stops`, and the prompts of its steps."""
    found: list[list[int]] = []
    for steps in (*stops, 8):
        loop = make_loop(steps=8, **settings)
        loop.config = replace(loop.config, steps=steps)
        loop.groups.source, loop.groups.right = order(), lambda score: score.reward == 1.0
        loop.checkpoints = Checkpoints(folder, keep=2)
        restored = loop.checkpoints.restore(loop.learner, loop.outer, loop.groups)
        loop.state = loop.state if restored is None else restored[0]
        loop.observers = (lambda result: found.append([group.prompt.id for group in result.groups]),)
        loop.train()
        loop.groups.close()
    return loop, found


@pytest.mark.parametrize("lag", [None, {"lag": 2, "ahead": False}, {"lag": 2, "ahead": True}], ids=str)
def test_a_run_that_is_taken_up_again_draws_the_same_prompts(tmp_path: Path, lag: dict[str, Any] | None) -> None:
    whole, prompts = trained(tmp_path / "whole", (), lag=lag)
    again, others = trained(tmp_path / "again", (2, 5), lag=lag)
    assert prompts == others
    assert whole.state.counts == again.state.counts
    assert sum(seen for _, seen in whole.state.counts.values()) == 8 * 3 * 4
    weights = [
        {name: raw(tensor) for name, tensor in loop.learner.model.module.state_dict().items()}
        for loop in (whole, again)
    ]
    assert weights[0] == weights[1]
