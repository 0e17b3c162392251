"""The answer checkers against verdicts of others: GSM8K's, MATH's, Math-Verify's test suite, and seven graders'."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fakes.tables import table
from oncurve.rewards import Exact, Numeric, Regex
from oncurve.rewards.functions.answers import boxed, final_answer, marked_number
from oncurve.rewards.functions.callables import Matcher
from oncurve.rewards.functions.math import Checker

# Conventions conflict between sources. These cases do not fit ours; the key is suite and line (mathverify_cases) or
# source project, kind and text (extraction_and_format_cases).
OTHER_MATH_CONVENTIONS = {tuple(key): reason for *key, reason in table("answer_checkers", "math")}
OTHER_TEXT_CONVENTIONS = {tuple(key): reason for *key, reason in table("answer_checkers", "texts")}
OTHER_TEXT_CONVENTIONS["to_float", None] = "no text at all; a completion is always text"
ROWS = pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
"""All rows of a long file where there is time, and each eighth of them otherwise."""
THINK = r"(?s)^<think>(?!.*<think>)(?!.*</think>.*</think>).*?</think>.*$"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@cache
def checker(after: str | None = None) -> Checker:
    return Checker(after=after)


def graded_solutions(test_data: Path) -> list[tuple[str, str, bool]]:
    """2,640 solutions by models: (ground truth, solution, whether it is right)."""
    rows = lines(test_data / "gsm8k" / "example_model_solutions.part1.jsonl")
    found = [
        (row["ground_truth"], graded["solution"], graded["is_correct"])
        for row in rows
        for graded in row.values()
        if isinstance(graded, dict)
    ]
    assert len(found) == 2640
    return found


def test_numeric_agrees_with_every_verdict_on_gsm8k_solutions(test_data: Path) -> None:
    for marked_only in (False, True):
        reward = Numeric(unmarked=not marked_only)
        wrong = [s for truth, s, right in graded_solutions(test_data) if reward(s, truth) != float(right)]
        assert wrong == []


@ROWS
def test_math_agrees_with_every_verdict_on_gsm8k_solutions(test_data: Path, every: int) -> None:
    solutions = graded_solutions(test_data)[::every]
    wrong = [s for truth, s, right in solutions if checker().check(s, truth) != float(right)]
    assert wrong == []


@ROWS
def test_every_gsm8k_answer_is_a_number_and_right_against_itself(test_data: Path, every: int) -> None:
    rows = lines(test_data / "gsm8k" / "train.jsonl") + lines(test_data / "gsm8k" / "test.jsonl")
    for row in rows[::every]:
        assert Numeric()(row["answer"], row["answer"]) == 1.0
        assert Exact()(row["answer"], row["answer"].partition("####")[2]) == 1.0
        assert Numeric()("#### 3.14159", row["answer"]) == 0.0


@ROWS
def test_every_math500_answer_is_right_against_itself_and_another_is_not(test_data: Path, every: int) -> None:
    for row in json.loads((test_data / "math" / "math500.json").read_text())[::every]:
        assert checker().check(rf"So the answer is $\boxed{{{row['answer']}}}$.", row["answer"]) == 1.0, row["answer"]
        assert checker().check(r"So the answer is $\boxed{1234567.5}$.", row["answer"]) == 0.0, row["answer"]


def test_math_gives_math_verifys_verdicts(test_data: Path) -> None:
    cases = lines(test_data / "golden" / "mathverify_cases.jsonl")
    assert len(cases) == 134
    different = set()
    for case in cases:
        if checker().check(case["pred"], case["gold"]) != float(case["expected"]):
            key = (case["suite"], case["line"])
            different.add((*key, False) if case.get("strict") is False else key)
    assert different == set(OTHER_MATH_CONVENTIONS)


def verdict(case: dict[str, Any]) -> Any:
    """What our part for this kind of case says, in the form in which the case expects it."""
    kind, text = case["kind"], case.get("text")
    if kind in ("grade", "accuracy_reward"):
        found = checker().check(case["pred"], case["gold"])
        return bool(found) if kind == "grade" else found
    if kind == "reasoning_accuracy_reward":
        return checker("</think>").check(case["pred"], case["gold"])
    if kind == "dapo_answer_line":
        return bool(Numeric(unmarked=False)(text or "", case["gold"]))
    if kind == "think_format":
        return Matcher(Regex(pattern=THINK).pattern, "search")({"completion": text})
    if kind in ("strip_string(MATH)", "normalize_final_answer(Minerva/DAPO)"):
        same = checker().check(text or "", case["expected"]) == 1.0  # we compare instead of normalising
        return case["expected"] if same else f"not equal to {case['expected']}"
    if kind in ("to_float", "last_int"):
        number = marked_number(text or "")
        return None if number is None else float(number.value)
    if kind == "gsm8k_final":
        return final_answer(text or "")
    assert kind in ("boxed_content", "last_boxed")
    return boxed(text or "")


def test_extraction_and_format_cases(test_data: Path) -> None:
    cases = lines(test_data / "golden" / "extraction_and_format_cases.jsonl")
    assert len(cases) == 59
    for case in cases:
        key = (case["kind"], case.get("text", case.get("pred")))
        if key == ("to_float", None):
            continue
        assert (verdict(case) == case["expected"]) == (key not in OTHER_TEXT_CONVENTIONS), case
