import ast
import operator
import re

import pytest

from oncurve.errors import ConfigError
from oncurve.tasks import ArithmeticTask
from oncurve.tasks.arithmetic import (
    GAINS,
    LARGEST_TOTAL,
    STYLES,
    Problem,
    answer_of,
    check_steps,
    is_correct,
    problem,
    problems,
    read_question,
    solution,
    split_of,
)

BEADS = Problem(
    7, 8, (46, -19, 25), "Mia has 7 bags of 8 beads. She finds 46, sells 19 and wins 25. How many beads now?"
)


def told(question: str) -> int:
    """The answer, worked out from the English alone."""
    bags, each, *numbers = (int(n) for n in re.findall(r"\d+", question))
    verbs = re.findall(r"(\w+) (?=\d)", question.split(". ")[1])
    assert len(verbs) == len(numbers)
    return bags * each + sum(n if verb in GAINS else -n for verb, n in zip(verbs, numbers, strict=True))


def value(expression: str) -> int:
    """An independent evaluator of `7*8+46-19`."""
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


def test_the_styles_of_the_worked_example():
    assert solution(BEADS, "steps") == "7*8=56\n56+46=102\n102-19=83\n83+25=108\n#### 108"
    assert solution(BEADS, "pairs") == "7*8+46=102\n102-19+25=108\n#### 108"
    assert solution(BEADS, "leap") == "7*8+46-19+25=108\n#### 108"


def test_a_problem_is_a_function_of_split_seed_and_index():
    assert problems("train", 5, seed=1)[3] == problem("train", 3, seed=1) == problems("train", 1, seed=1, start=3)[0]
    assert problem("train", 0, seed=1) != problem("train", 0, seed=2)


def test_golden_problems():
    assert [item.question for item in problems("test", 2)] == [
        "Mia has 3 bags of 6 coins. She wins 53 and loses 33. How many coins now?",
        "Mia has 4 bags of 9 stamps. She gets 7 and gets 42. How many stamps now?",
    ]


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match='"train" or "test"'):
        problem("dev", 0)


def test_each_problem_is_in_the_split_its_numbers_say():
    for split in ("train", "test"):
        assert all(split_of(p.bags, p.each, p.changes) == split for p in problems(split, 500, seed=9))


def test_the_split_knows_no_order_of_the_numbers():
    for item in problems("test", 100):
        assert split_of(item.each, item.bags, item.changes[::-1]) == "test"


def test_held_out_problems_occur_in_no_training_stream():
    def numbers(item):
        return tuple(sorted((item.bags, item.each))), tuple(sorted(item.changes))

    held_out = {numbers(item) for item in problems("test", 1024)}
    assert len({item.question for item in problems("test", 1024)}) == 1024
    for seed in range(4):
        assert held_out.isdisjoint(numbers(item) for item in problems("train", 5000, seed))


def test_questions_are_read_back():
    for item in problems("train", 200, seed=7):
        assert read_question(item.question) == read_question(item.prompt) == item
    with pytest.raises(ValueError, match="not a question"):
        read_question("What is love?")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 108", "108"),
        ("7*8=56\n#### 108\n", "108"),
        ("#### 1\n#### 2", "2"),
        ("####108", "108"),
        ("#### 007", "7"),
        ("#### -3", "-3"),
        ("#### 108.", "108"),
        ("108", None),
        ("####", None),
        ("", None),
    ],
)
def test_answers_are_found(text, answer):
    assert answer_of(text) == answer


def test_only_the_right_number_is_correct():
    assert is_correct("#### 108", "108")
    assert not is_correct("#### 10", "108")
    assert not is_correct("#### 1080", "108")
    assert not is_correct("7*8=56", BEADS)


@pytest.mark.parametrize(
    ("lines", "right"),
    [
        (["7*8=56", "56+46=102", "102-19=83", "83+25=108", "#### 108"], [True] * 5),
        (["7*8=56", "56+46=112", "112-19=93", "93+25=118", "#### 118"], [True, False, False, False, False]),
        (["7*8=56", "56+46=112", "102-19=83"], [True, False, False]),  # a wrong step cannot be taken back
        (["7*8=56", "56-46=10"], [True, False]),  # true, but not what the story says
        (["7*8=56", "56-19=37"], [True, False]),  # leaves one out
        (["7*8+46=102", "102-19+25=108", "#### 108"], [True] * 3),
        (["7*8+46-19+25=107", "#### 108"], [False, False]),
        (["#### 108"], [True]),  # right, with no working
        (["#### 108 or so"], [False]),
        (["7*8=56", "7*8=56"], [True, False]),
        (["let me see"], [False]),
    ],
)
def test_the_step_checker_finds_the_first_wrong_step(lines, right):
    steps = check_steps("\n".join(lines), BEADS.question)
    assert [ok for _, ok in steps] == right


def test_steps_end_after_their_line_and_blank_lines_are_none():
    text = "7*8=56\n\n56+46=102\n"
    assert check_steps(text, BEADS.question) == [(7, True), (18, True)]
    assert check_steps("", BEADS.question) == []


def test_the_task_gives_rows_and_its_test_rows_do_not_depend_on_the_seed():
    task = ArithmeticTask(seed=4)
    first = task.rows("train", 3)
    assert set(first[0]) == {"prompt", "question", "answer"}
    assert first[0]["prompt"] == first[0]["question"] + "\n"
    assert task.rows("train", 1, start=2) == first[2:]
    assert first != ArithmeticTask(seed=5).rows("train", 3)
    assert task.rows("test", 3) == ArithmeticTask().rows("test", 3)
    assert task.is_correct("#### 5", "5")
    assert task.check_steps("7*8=56", BEADS.question) == [(6, True)]
