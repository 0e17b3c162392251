"""Where the final answer is, and which number it is."""

import time
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import TypeVar

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from fakes.tables import table
from oncurve.rewards import Exact, Numeric
from oncurve.rewards.functions.answers import LONGEST_NUMBER, boxed, final_answer, marked_number, text_after
from oncurve.rewards.functions.math import Checker, _to_parse
from oncurve.steps import lines, splitter_of
from oncurve.tasks.arithmetic import check_steps, is_correct, problem


def value_in(text: str, unmarked: bool = True) -> Fraction | None:
    found = marked_number(text, unmarked)
    return None if found is None else found.value


@pytest.mark.parametrize(
    ("text", "expected"), [*table("answers", "the_final_answer"), ("EXTRA: 3", None), ("a number 42", None), ("", None)]
)
def test_the_final_answer(text: str, expected: str | None) -> None:
    assert final_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *table("answers", "the_number_of_an_answer"),
        *table("answers", "the_fraction_of_an_answer"),
        ("5/0", None),
        ("#### five", None),
        ("", None),
        ("9" * (LONGEST_NUMBER + 1), None),
        ("9" * 10_000, None),
    ],
)
def test_the_number_of_an_answer(text: str, expected: int | str | None) -> None:
    assert value_in(text) == (None if expected is None else Fraction(expected))


def test_without_a_mark_the_last_number_counts_only_when_asked() -> None:
    assert value_in("just a number 42") == 42
    assert value_in("just a number 42", unmarked=False) is None
    assert value_in("#### 42", unmarked=False) == 42


@pytest.mark.parametrize("text", table("answers", "a_text_that_states_no_single_number_has_none"))
def test_a_text_that_states_no_single_number_has_none(text: str) -> None:
    for number in ("5", "6", "-6"):
        assert Numeric()(f"The answer is {text}.", number) == Numeric()(f"#### {text}", number) == 0.0
        assert Numeric()(text, number) == 0.0
    assert Numeric()("#### 5", text) is None


@pytest.mark.parametrize("text", table("answers", "a_text_that_states_one_number_has_it"))
def test_a_text_that_states_one_number_has_it(text: str) -> None:
    assert Numeric()(f"The answer is {text}.", "5") == Numeric()(f"#### {text}", "5") == 1.0


@given(st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=1000))
def test_every_fraction_is_read_back_exactly(value: Fraction) -> None:
    assert value_in(f"so\n#### {value}") == value


@given(st.integers(-(10**12), 10**12), st.integers(0, 99))
def test_grouped_decimals_are_read_back_exactly(whole: int, cents: int) -> None:
    sign = "-" if whole < 0 else ""
    assert value_in(f"#### {sign}${abs(whole):,}.{cents:02d}") == (
        (Fraction(abs(whole)) + Fraction(cents, 100)) * (-1 if whole < 0 else 1)
    )


@given(st.text(alphabet="#\\boxed{} 0123456789,./-$eA:nswris\n", max_size=60))
def test_no_text_makes_it_fail(text: str) -> None:
    value_in(text)
    boxed(text)


Test = TypeVar("Test", bound=Callable[..., None])

MARKERS = ["#### ", "####", "A: ", "Answer: ", "**Answer:** ", "Final Answer: ", "ANSWER: ", "answer = ", "Answer:\n"]
SAID = ["The answer is ", "So the final answer is: ", "The correct answer is "]
WORDS = table("answers", "words")
UNITS = table("answers", "units")
ENDS = ["", ".", "!", " .", "\n", ".\n\n", "**"]


def value_of(text: str) -> Fraction | None:
    found = marked_number(text)
    return None if found is None else found.value


def forms(value: Fraction) -> list[str]:
    """Ways of writing a number with at most two decimals."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    whole, cents = divmod(round(size * 100), 100)
    tail = f".{cents:02d}" if cents else ""
    found = [f"{whole}{tail}", f"{whole:,}{tail}", f"{whole:,}{tail}".replace(",", " "), f"${whole:,}{tail}"]
    found += [f"{whole:,}{tail}".replace(",", r"\,"), f"{whole:,}{tail}".replace(",", "{,}")]
    if cents:
        found += [f"{size.numerator}/{size.denominator}", rf"\frac{{{size.numerator}}}{{{size.denominator}}}"]
    else:
        found += [f"{whole}.0"]
    if cents and whole:
        rest = size - whole
        found += [f"{whole} {rest}", rf"{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}"]
    return [sign + form for form in found]


@cache
def checker() -> Checker:
    return Checker()


@st.composite
def phrased(draw: st.DrawFn) -> tuple[str, Fraction]:
    value = Fraction(draw(st.integers(-(10**9), 10**9)), draw(st.sampled_from([1, 1, 2, 4, 100])))
    marker, words = draw(st.sampled_from(MARKERS + SAID)), draw(st.sampled_from(WORDS))
    form, unit, end = draw(st.sampled_from(forms(value))), draw(st.sampled_from(UNITS)), draw(st.sampled_from(ENDS))
    before = draw(st.sampled_from(["", "We add 3 and 4.\n", "Step 1: 2 * 3 = 6.\nThen 7.\n"]))
    return f"{before}{marker}{words}{form}{unit}{end}", value


PHRASES = table("answers", "phrases")


def known_phrases(test: Test) -> Test:
    """`test` with every phrase of `PHRASES` as an example."""
    for phrase, number in PHRASES.items():
        test = example((phrase, Fraction(number)), 1)(test)
    return test


@settings(max_examples=100)
@given(phrased(), st.integers(1, 10**6))
@known_phrases
def test_numeric_reads_the_number_however_it_is_phrased(case: tuple[str, Fraction], other: int) -> None:
    text, value = case
    assert value_of(text) == value
    assert Numeric()(text, f"{value.numerator}/{value.denominator}") == 1.0
    assert Numeric()(text, str(value + other)) == 0.0


@settings(max_examples=40)
@given(phrased(), st.integers(1, 10**6))
@known_phrases
@example(("#### x = 1,000", Fraction(1000)), 1)
@example((r"\boxed{x = -12,345.50}", Fraction("-12345.50")), 1)
@example((r"Answer: about \frac{1}{20} m/s", Fraction(1, 20)), 1)
@example(("A: 2 1/2 cm^2", Fraction(5, 2)), 1)
def test_math_reads_the_number_however_it_is_phrased(case: tuple[str, Fraction], other: int) -> None:
    text, value = case
    assume(value % 100 != other % 100)  # not equal as a percentage either
    assert checker().check(text, str(value)) == 1.0
    assert checker().check(text, str(value + other)) == 0.0


@pytest.mark.parametrize(("text", "expected"), table("answers", "math_and_numeric_agree"))
def test_math_and_numeric_agree(text: str, expected: int | str) -> None:
    assert Numeric()(text, str(expected)) == 1.0
    assert checker().check(text, str(expected)) == 1.0
    for wrong in (Fraction(7, 2), 3, 99):
        assert Numeric()(text, str(wrong)) == checker().check(text, str(wrong)) == 0.0


@pytest.mark.parametrize("text", table("answers", "no_number_with_digits"))
def test_what_holds_digits_and_is_no_number(text: str) -> None:
    assert value_of(text) is None
    assert value_of(f"#### {text}") is None
    assert value_of(f"Answer: on {text} it was 42.") == 42
    assert Numeric()(f"#### {text}", 12) == 0.0
    assert Numeric()("#### 12", text) is None


PIECES = table("answers", "pieces")
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
SHORT, TIMES = 256, 32
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
