"""Answers as models phrase them: every marker, with words, number forms, units and punctuation around a number."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import TypeVar

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from oncurve.rewards import Numeric
from oncurve.rewards.answers import marked_number
from oncurve.rewards.math import Checker

Test = TypeVar("Test", bound=Callable[..., None])

MARKERS = ["#### ", "####", "A: ", "Answer: ", "**Answer:** ", "Final Answer: ", "ANSWER: ", "answer = ", "Answer:\n"]
SAID = ["The answer is ", "So the final answer is: ", "The correct answer is "]
WORDS = [
    "",
    "about ",
    "The answer is ",
    "The final answer is therefore ",
    "She has ",
    "a total of ",
    "it is exactly ",
    "approximately ",
    "Tom's share is ",
    "x = ",
    "the sum, so ",
]
UNITS = [
    "",
    " apples",
    " dollars left",
    " km",
    " cm^2",
    " m/s",
    " percent of it",
    " in all",
    "%",
    " degrees",
    " kg each",
]
ENDS = ["", ".", "!", " .", "\n", ".\n\n", "**"]


def value_in(text: str) -> Fraction | None:
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


PHRASES = {
    "Final Answer: The final answer is 7.78.": "7.78",
    "Answer: She has 5 apples left.": "5",
    "#### The answer is 12": "12",
    "Answer: about 5": "5",
    "So the final answer is therefore 5.": "5",
}


def known_phrases(test: Test) -> Test:
    """`test` with every phrase of `PHRASES` as an example."""
    for phrase, number in PHRASES.items():
        test = example((phrase, Fraction(number)), 1)(test)
    return test


@settings(max_examples=300)
@given(phrased(), st.integers(1, 10**6))
@known_phrases
def test_numeric_reads_the_number_however_it_is_phrased(case: tuple[str, Fraction], other: int) -> None:
    text, value = case
    assert value_in(text) == value
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: 5 apples cost 7 dollars", 5),  # the first number of a marked answer
        ("Answer: a total of 3 + 4 = 7 apples", 7),  # after the last equals sign
        ("Answer: he gave 3 to each of 4 = 12 in all", 12),
        ("#### 1 000", 1000),
        ("Answer: 12 345 678 people", 12345678),
        ("Answer: 5 million dollars", 5_000_000),
        (r"Answer: 3 \times 10^5 joules", 300_000),
        ("Answer: minus 5 degrees", -5),
        (r"\boxed{1 000}", 1000),
        (r"\boxed{50\%}", 50),
        (r"\boxed{50\%}", Fraction(1, 2)),
        ("#### 50 percent", Fraction(1, 2)),
        ("50", r"50\%"),
        ("0.5", "50%"),
        *(
            (f"Answer: {form}", 45)
            for form in ("45€", "45 €", "£45", "¥ 45", "45°", "45 °C", "４５", "\u200b45", "45 ✅")
        ),
        *((f"The answer is {form}.", 45) for form in ("“45”", "`45`", "«45»", "'45'", "USD 45", "EUR 45.00")),
        *((rf"\boxed{{{form}}}", 45) for form in ("45€", "45°", "４５")),
        *((f"#### {form} cups", Fraction(5, 2)) for form in ("2½", "2 ½", "5⁄2", "2½ or so")),
        ("Answer: ¾", Fraction(3, 4)),
        ("Answer: 12 o'clock", 12),
        ("Answer: 25 cm²", 25),
        ("Answer: 25 cm^2", 25),
    ],
)
def test_math_and_numeric_agree(text: str, expected: int | Fraction | str) -> None:
    assert Numeric()(text, str(expected)) == 1.0
    assert checker().check(text, str(expected)) == 1.0
    for wrong in (Fraction(7, 2), 3, 99):
        assert Numeric()(text, str(wrong)) == checker().check(text, str(wrong)) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        *("12.34.56", "2024-01-15", "15/01/2024", "15.01.2024", "15-01-2024", "192.168.0.1", "v1.2.3", "1.2.3", "v2.0"),
        *("0x1F", "10:30", r"\sqrt{2}", "2^3", r"\frac{x}{2}", r"3\pi", "1/2/3", "1.000.000", "-1.2.3", "$1.2.3"),
        *("5²", "5³", "√2", "x^2", "cm^{2}", "x_1", "x_{12}", "f(x)^2"),
    ],
)
def test_what_holds_digits_and_is_no_number(text: str) -> None:
    assert value_in(text) is None
    assert value_in(f"#### {text}") is None
    assert value_in(f"Answer: on {text} it was 42.") == 42
    assert Numeric()(f"#### {text}", 12) == 0.0
    assert Numeric()("#### 12", text) is None
