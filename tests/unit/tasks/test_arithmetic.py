import ast
import operator
import re

import pytest

from fakes.solutions import STYLES, solution
from fakes.tables import table
from oncurve.tasks.arithmetic import (
    GAINS,
    LARGEST_TOTAL,
    Problem,
    answer_of,
    check_steps,
    is_correct,
    problem,
    problems,
    row,
    split_of,
)

BEADS = Problem(
    7, 8, (31, -19, 25), "Mia has 7 bags of 8 beads. She finds 31, sells 19 and wins 25. How many beads now?"
)


def told(question: str) -> int:
    """The answer, worked out from the English alone."""
    bags, each, *numbers = (int(n) for n in re.findall(r"\d+", question))
    verbs = re.findall(r"(\w+) (?=\d)", question.split(". ")[1])
    assert len(verbs) == len(numbers)
    return bags * each + sum(n if verb in GAINS else -n for verb, n in zip(verbs, numbers, strict=True))


def value(expression: str) -> int:
    """An independent evaluator of `7*8+31-19`."""
    table = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return table[type(node.op)](walk(node.left), walk(node.right))
        assert isinstance(node, ast.Constant)
        return int(node.value)

    return walk(ast.parse(expression, mode="eval").body)


def test_answers_agree_with_the_story_and_with_another_evaluator():
    for item in problems("train", 400, seed=3) + problems("test", 200):
        assert int(item.answer) == told(item.question) == value("".join(item.terms))
        assert 1 <= min(item.totals) <= max(item.totals) <= LARGEST_TOTAL


@pytest.mark.parametrize("style", STYLES)
def test_solutions_are_right_line_by_line_in_every_style(style):
    for item in problems("train", 200, seed=5):
        text = solution(item, style)
        *working, last = text.split("\n")
        assert all(value(line.split("=")[0]) == int(line.split("=")[1]) for line in working)
        assert last == f"#### {item.answer}"
        assert is_correct(text, item)
        assert is_correct(text, item.answer)
        assert all(ok for _, ok in check_steps(text, item.question))


def test_golden_problems():
    assert [item.question for item in problems("test", 2)] == [
        "Sam has 4 bags of 8 nuts. He finds 7 and loses 37. How many nuts now?",
        "Mia has 3 bags of 4 beads. She wins 40 and drops 26. How many beads now?",
    ]


def test_each_problem_is_in_the_split_its_numbers_say():
    for split in ("train", "test"):
        assert all(split_of(p.bags, p.each, p.changes) == split for p in problems(split, 500, seed=9))


def numbers(item):
    return tuple(sorted((item.bags, item.each))), tuple(sorted(item.changes))


def test_held_out_problems_occur_in_no_training_stream():
    held_out = problems("test", 1024)
    assert len({item.question for item in held_out}) == 1024
    forbidden = {numbers(item) for item in held_out}
    for seed in range(10):
        assert forbidden.isdisjoint(numbers(item) for item in problems("train", 300, seed))


@pytest.mark.slow
def test_held_out_problems_do_not_occur_in_all_that_the_tiny_model_was_pretrained_on():
    forbidden = {numbers(item) for item in problems("test", 1024)}
    assert forbidden.isdisjoint(numbers(item) for item in problems("train", 98_304, 1_000_003))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *table("arithmetic", "answers"),
        ("93", None),
        ("#### " + "9" * 5000, None),
        ("#### 93\n#### -" + "9" * 5000, None),
        ("", None),
    ],
)
def test_answers_are_found(text, answer):
    assert answer_of(text) == answer


def test_only_the_right_number_is_correct():
    assert is_correct("#### 93", "93")
    assert not is_correct("#### 9", "93")
    assert not is_correct("#### 930", "93")
    assert not is_correct("7*8=56", BEADS)
    assert not is_correct("#### " + "9" * 5000, BEADS)
    assert check_steps("#### " + "9" * 5000, BEADS.question) == [(5005, False)]


@pytest.mark.parametrize(("lines", "right"), table("arithmetic", "the_step_checker_finds_the_first_wrong_step"))
def test_the_step_checker_finds_the_first_wrong_step(lines, right):
    steps = check_steps("\n".join(lines), BEADS.question)
    assert [ok for _, ok in steps] == right


def test_the_task_gives_rows_and_its_test_rows_do_not_depend_on_the_seed():
    first = row("train", 2, seed=4)
    assert set(first) == {"prompt", "question", "answer"}
    assert first["prompt"] == first["question"] + "\n"
    assert first["question"] == problem("train", 2, seed=4).question
    assert first not in (row("train", 2, seed=5), row("train", 1, seed=4))
    assert row("test", 3, seed=4) == row("test", 3)
