"""Rewards that score steps: what functions may return, how components add up, where the steps end in tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.scoring import group
from oncurve.rewards import Python, RewardSet
from oncurve.steps import token_ends
from oncurve.types import Completion, Group, Prompt, Score

TEXT = "one\ntwo\nthree"

USER_FILE = """
def by_split(completion):
    return {"reward": 0.5, "steps": [len(line) for line in completion.split("\\n")]}

def own(completion):
    return {"steps": [(2, 1.0), (len(completion), 3.0)]}

def given(completion_steps, answer):
    return [float(step.strip() == answer) for step in completion_steps]

def given_all(completion_steps, **columns):
    return {"score": float("completion" in columns), "steps": [1] * len(completion_steps)}

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.25, "acc": 1, "steps": [0, 1, 0]}

def trl(completions, **kwargs):
    return [{"steps": [1.0] * (c.count("\\n") + 1)} if c else None for c in completions]

def by_ids(completion_ids):
    return {"steps": [[4, 1.0], [len(completion_ids), 3.0]]}

def by_answer(answer):
    return {"steps": [0.0, float(answer == "two"), 0.0]}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(USER_FILE)
    return tmp_path


def by_characters(prompt: Prompt, completion: Completion, ends: Sequence[int]) -> tuple[int, ...]:
    """One token a character."""
    return token_ends(ends, completion.text, completion.ids, lambda ids: "".join(map(chr, ids)))


def scored(settings: Any, groups: list[Group], base: Path | None = None) -> list[Score]:
    with RewardSet.build(settings, base=base) as rewards:
        rewards.locate = by_characters
        return [score for found in rewards.score(groups) for score in found.scores]


def steps_of(score: Score) -> list[tuple[int, float]]:
    return list(zip(score.step_ends, score.step_rewards, strict=True))


@pytest.mark.parametrize(
    ("name", "reward", "steps"),
    [
        ("by_split", 0.5, [(3, 3.0), (7, 3.0), (12, 5.0)]),
        ("own", 2.0, [(1, 1.0), (12, 3.0)]),
        ("given", 1 / 3, [(3, 0.0), (7, 1.0), (12, 0.0)]),
        ("given_all", 1.0, [(3, 1.0), (7, 1.0), (12, 1.0)]),
        ("compute_score", 0.25, [(3, 0.0), (7, 1.0), (12, 0.0)]),
        ("trl", 1.0, [(3, 1.0), (7, 1.0), (12, 1.0)]),
        ("by_ids", 2.0, [(3, 1.0), (12, 3.0)]),
        ("by_answer", 1 / 3, [(3, 0.0), (7, 1.0), (12, 0.0)]),
    ],
)
def test_every_signature_may_score_steps(mine: Path, name: str, reward: float, steps: list[tuple[int, float]]) -> None:
    (score,) = scored([{"path": f"mine.py:{name}"}], [group(TEXT, columns={"answer": "two"})], mine)
    assert score.fault is None
    assert score.reward == pytest.approx(reward)
    assert steps_of(score) == steps


def test_components_add_up_where_they_score_the_same_step_and_a_whole_counts_at_the_end() -> None:
    def one(completion: str) -> Any:
        return {"reward": 1.0, "steps": [[4, 1.0], [13, 2.0]]}

    def other(completion: str) -> Any:
        return {"steps": [[4, 10.0], [8, 20.0]]}

    def whole(completion: str) -> float:
        return 100.0

    (score,) = scored([Python(function=one, weight=0.5), Python(function=other), Python(function=whole)], [group(TEXT)])
    assert steps_of(score) == [(3, 10.5), (7, 20.0), (12, 101.0)]
    assert score.reward == 0.5 + 15.0 + 100.0
    assert score.parts == {"one": 1.0, "other": 15.0, "whole": 100.0}
    (score,) = scored([Python(function=other), Python(function=whole, weight=0.0)], [group(TEXT)])
    assert steps_of(score) == [(3, 10.0), (7, 20.0)]  # what has no weight is only looked at


def test_steps_that_do_not_apply_are_left_out() -> None:
    (score,) = scored([lambda completion: {"steps": [None, 1.0, None]}], [group(TEXT)])
    assert steps_of(score) == [(7, 1.0)]
    (score,) = scored([lambda completion: {"steps": [None, None, None]}], [group(TEXT)])
    assert (score.valid, score.step_ends) == (False, ())
    (score,) = scored([lambda completion: {"reward": 2.0, "steps": []}], [group("")])
    assert (score.reward, score.step_ends) == (2.0, ())


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ({"steps": [1.0]}, "exception", "1 step rewards for a completion of 3 steps"),
        ({"steps": [[3, 1.0], [3, 2.0]]}, "exception", "in a completion of 13 characters"),
        ({"steps": [[14, 1.0]]}, "exception", "in a completion of 13 characters"),
        ({"steps": [[2.0, 1.0]]}, "exception", "in a completion of 13 characters"),
        ({"steps": [1.0, float("nan"), 1.0]}, "not_finite", "nan"),
        ({"steps": [1.0, "x", 1.0]}, "type", "instead of a number"),
        ({"reward": "x", "steps": [1.0, 1.0, 1.0]}, "type", "instead of a number"),
        ({"stepz": []}, "type", "a dict"),
    ],
)
def test_what_is_wrong_about_steps_is_a_fault_of_that_completion(value: Any, kind: str, words: str) -> None:
    def f(completion: str) -> Any:
        return value if completion == TEXT else {"steps": [1.0]}

    (bad, good) = scored([f], [group(TEXT, "fine")])
    assert bad.fault.startswith(kind)
    assert words in bad.fault
    assert not bad.valid
    assert (good.valid, good.step_rewards) == (True, (1.0,))
