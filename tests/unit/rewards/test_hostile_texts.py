"""Checkers on hostile text: twice the text is twice the time, in the process that trains."""

import time
from collections.abc import Callable

import pytest

from oncurve.rewards import Exact, Numeric
from oncurve.rewards.answers import boxed, text_after
from oncurve.rewards.math import _to_parse
from oncurve.steps import lines, splitter_of
from oncurve.tasks.arithmetic import check_steps, is_correct, problem

PIECES = [
    *(" ", "\t", "\n", "\xa0", "\u3000", "{", "}", "{}", "\\", "\\{", "$", "#", "####", "#### "),
    *("#### 1\n", "\u0663", "\\boxed{", "\\boxed ", "\\boxed{1}", "\\boxed{\\frac{", "\\frac", "\\frac "),
    *("\\frac{", "\\frac{1}", "\\frac{1}{", "1", "1,", "111,", "1 ", "1 000 ", "000 ", "1.", ".", "1/"),
    *("/", "1-", "-", "\u2212", "1e", "1^", "1:", "0x", "v1.", "1'", "A:", "\nA: ", "Answer:", "Answer: "),
    *("Answer:\n", "answer is ", "answer ", "minus ", "1 million ", "10^", "10^{", "\\sqrt", "\\sqrt{"),
    *("\\sqrt[", "\\text{", "a", "a ", "a'", "ab ", "word ", "words'", "=", "1 = ", "%", "1% ", "(", "(["),
    *("\u221a", "\U0001d7d9", "\u0663 ", "\xe9", "</think>", "x10^", " x 10^5", "1+1=2\n", "1+", "\\ "),
    *("~", "1\\ ", ",\\!", "_", "*", "**"),
]
QUESTION = problem("train", 0).question
CHECKERS: dict[str, Callable[[str], object]] = {
    "numeric": lambda text: Numeric()(text, "1"),
    "exact": lambda text: Exact()("Answer: " + text, "1"),
    "boxed": lambda text: boxed("\\boxed{1" + text),
    "what math parses": lambda text: _to_parse("#### the answer is 1" + text),
    "what math parses of all": _to_parse,
    "task": lambda text: is_correct(text, "1"),
    "task_steps": lambda text: check_steps(text, QUESTION),
    "after": lambda text: text_after(text, "</think>"),
    "lines": lines,
    "paragraphs": splitter_of(r"/\n\n+/"),
}
SHORT, TIMES = 512, 32
SLOWER = 8  # than linear, for caches and the noise of the machine; quadratic would be TIMES


@pytest.mark.parametrize("name", CHECKERS)
def test_the_time_is_linear_in_the_text(name: str) -> None:
    check = CHECKERS[name]

    def seconds(piece: str, length: int, tries: int) -> float:
        text = (piece * (length // len(piece) + 1))[:length] + "!"
        found = []
        for _ in range(tries):
            begun = time.process_time()
            check(text)
            found.append(time.process_time() - begun)
        return min(found)

    for piece in PIECES:
        limit = SLOWER * TIMES * max(seconds(piece, SHORT, 2), 5e-5)
        within = seconds(piece, SHORT * TIMES, 1) < limit
        assert within or seconds(piece, SHORT * TIMES, 3) < SLOWER * TIMES * seconds(piece, SHORT, 5), piece


def test_a_million_blanks_are_read() -> None:
    text = "\\frac" + " " * 1_000_000 + "#### 7"
    assert Numeric()(text, "7") == 1.0
