"""The verifiable rewards: exact, numeric, task, regex, math."""

from typing import Any

import pytest

from fakes.scoring import faults_of, group, limit_beyond, rewards_of
from oncurve.rewards import Exact, Math, Numeric, RewardSet


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("Paris", "Paris", 1.0),
        ("It is big.\nAnswer: Paris.", "Paris", 1.0),
        ("#### Paris", "some working\n#### Paris", 1.0),
        ("  New   York \n", "New York", 1.0),
        ("paris", "Paris", 0.0),
        ("Paris, France", "Paris", 0.0),
        ("4", 4, 1.0),
        ("4.0", 4, 0.0),
        ("x", "", None),
        ("x", None, None),
        ("", "x", 0.0),
    ],
)
def test_exact_compares_the_text_of_the_answer(completion: str, answer: Any, expected: float | None) -> None:
    assert Exact()(completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("#### 1,234.0", "1234", 1.0),
        ("#### 42%", "42", 1.0),
        ("#### 0.1", 0.1, 1.0),
        ("#### 1/3", "0.333333", 0.0),
        ("no idea", "4", 0.0),
        ("4", "four", None),
        ("4", None, None),
    ],
)
def test_numeric_compares_exactly(completion: str, answer: Any, expected: float | None) -> None:
    assert Numeric()(completion, answer) == expected


def test_only_what_follows_the_reasoning_counts() -> None:
    tables = [{"kind": kind, "after": "</think>"} for kind in ("exact", "numeric", "math")]
    with RewardSet.build(tables) as rewards:
        (scored,) = rewards.score([group("<think>5</think>4", "<think>4</think>5", "4")])
    for name in ("exact", "numeric", "math"):
        assert [score.parts[name] for score in scored.scores] == [1.0, 0.0, 0.0]


def test_regex_searches_or_matches_the_whole() -> None:
    tables = [
        {"kind": "regex", "pattern": "b+"},
        {"kind": "regex", "pattern": "b+", "mode": "full", "name": "whole"},
        {"kind": "regex", "pattern": r"(?s)^<think>(?!.*<think>).*?</think>.*$", "name": "think"},
    ]
    with RewardSet.build(tables) as rewards:
        (scored,) = rewards.score([group("abb", "bb", "", "<think>\nx\n</think>y")])
    assert [score.parts["regex"] for score in scored.scores] == [1.0, 1.0, 0.0, 0.0]
    assert [score.parts["whole"] for score in scored.scores] == [0.0, 1.0, 0.0, 0.0]
    assert [score.parts["think"] for score in scored.scores] == [0.0, 0.0, 0.0, 1.0]


def test_catastrophic_backtracking_is_a_timeout_of_that_completion_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with RewardSet.build([{"kind": "regex", "pattern": "(a+)+$", "processes": 1}]) as rewards:
        limit = limit_beyond(lambda: rewards.score([group("a")]))
        monkeypatch.setattr(rewards.components[0].runner, "timeout_seconds", limit)
        scored = rewards.score([group("a", "a" * 60 + "b", "b")])  # by itself it would take centuries
    assert rewards_of(scored) == [1.0, None, 0.0]
    assert faults_of(scored) == [None, "timeout", None]


@pytest.fixture(scope="module")
def math() -> Any:
    with RewardSet.build([Math()]) as rewards:
        yield rewards


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"so \boxed{\frac{2}{4}}", r"\frac{1}{2}", 1.0),
        (r"so $x+1$", "1+x", 1.0),
        ("#### 42.", "42", 1.0),
        ("#### $1,234", "1234", 1.0),
        ("#### -3.0", "-3", 1.0),
        ("#### 1\n#### 2", "2", 1.0),
        ("#### 42%", "42", 1.0),
        ("#### 42 apples", "42", 1.0),
        ("#### 42", "6*7=<<6*7=42>>42\n#### 42", 1.0),
        ("It is 12 dollars", 12, 1.0),
        (r"\boxed{(3, \frac{\pi}{2})}", r"\left( 3, \frac{\pi}{2} \right)", 1.0),
        (r"\boxed{41}", "42", 0.0),
        ("", "42", 0.0),
        ("no idea", "42", 0.0),
        ("4", "Answer is forty two.", None),
        ("4", "", None),
    ],
)
def test_math_compares_mathematically(math: RewardSet, completion: str, answer: Any, expected: float | None) -> None:
    scored = math.score([group(completion, columns={"answer": answer})])
    assert rewards_of(scored) == [expected]


def test_math_that_takes_for_ever_is_a_timeout_and_the_next_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with RewardSet.build([Math(processes=1)]) as rewards:
        limit = limit_beyond(lambda: rewards.score([group(r"\boxed{4}")]))
        monkeypatch.setattr(rewards.components[0].runner, "timeout_seconds", limit)
        text = r"\boxed{" + "+".join(f"x_{{{n}}}^{{{n}}}" for n in range(1500)) + "}"
        scored = rewards.score([group(text, r"\boxed{4}")])
    assert rewards_of(scored) == [None, 1.0]
    assert faults_of(scored) == ["timeout", None]
