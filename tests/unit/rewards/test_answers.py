"""Where the final answer is, and which number it is."""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from oncurve.rewards.answers import LONGEST_NUMBER, Number, boxed, final_answer, marked_number, number_in, text_after


def value_in(text: str, unmarked: bool = True) -> Fraction | None:
    found = marked_number(text, unmarked)
    return None if found is None else found.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#### 42", "42"),
        ("#### 42.", "42"),
        ("####42", "42"),
        ("####: 55", "55"),
        ("#### 10\nmore\n#### 20", "20"),
        ("#### $1,234", "$1,234"),
        ("#### 42\nand then 43", "42"),
        ("####", ""),
        (r"so \boxed{42}", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed 7", "7"),
        (r"\boxed{\}}", r"\}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{1} #### 2", "2"),
        (r"#### 2 \boxed{1}", "1"),
        (r"\boxed{\boxed{7}}", "7"),
        ("A: 18", "18"),
        ("Answer: 12", "12"),
        ("**Answer:** 12", "12"),
        ("answer = 12", "12"),
        ("The answer is 5.", "5"),
        ("The final answer is: 5", "5"),
        ("Answer: 1\nAnswer: 2", "2"),
        ("Answer: 1\n#### 2\nAnswer: 3", "2"),
        ("EXTRA: 3", None),
        ("a number 42", None),
        ("", None),
    ],
)
def test_the_final_answer(text: str, expected: str | None) -> None:
    assert final_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#### 42.", 42),
        ("#### $1,234", 1234),
        ("#### -3.0", -3),
        ("#### -$5", -5),
        ("#### $-5", -5),
        (r"\boxed{42}", 42),
        ("#### 1\n#### 2", 2),
        ("42%", 42),
        (r"\boxed{50\%}", 50),
        ("#### 42 apples", 42),
        ("#### 42 apples in 3 bags", 42),
        ("A: 3 + 4 = 7", 7),
        (r"\boxed{18\text{ dollars}}", 18),
        (r"\boxed{\$1{,}234.50}", Fraction("1234.5")),
        (r"\boxed{10\,000}", 10000),
        (r"\boxed{\frac{3}{4}}", Fraction(3, 4)),
        (r"\boxed{-\dfrac{3}{4}}", Fraction(-3, 4)),
        (r"\boxed{\frac{-3}{4}}", Fraction(-3, 4)),
        ("#### 3/4", Fraction(3, 4)),
        ("it is 3/4.", Fraction(3, 4)),
        ("#### .5", Fraction(1, 2)),
        ("#### 1e3", 1000),
        ("#### 2.5e-1", Fraction(1, 4)),
        ("#### 007", 7),
        ("−7", -7),
        ("3-5", 5),
        ("(-5)", -5),
        ("first 1, then 22", 22),
        ("#### 1,22", 1),
        ("1,234,567.", 1234567),
        ("#### 12,3456", 12),
        ("5/0", None),
        ("#### five", None),
        ("", None),
        ("9" * (LONGEST_NUMBER + 1), None),
        ("9" * 10_000, None),
        ("1e9999999999", 9999999999),  # such an exponent is not read: two numbers, and the last counts
    ],
)
def test_the_number_of_an_answer(text: str, expected: int | Fraction | None) -> None:
    assert value_in(text) == expected


def test_without_a_mark_the_last_number_counts_only_when_asked() -> None:
    assert value_in("just a number 42") == 42
    assert value_in("just a number 42", unmarked=False) is None
    assert value_in("#### 42", unmarked=False) == 42


def test_the_first_or_the_last_number() -> None:
    assert number_in("1 and 2") == Number(Fraction(1))
    assert number_in("1 and 2", last=True) == Number(Fraction(2))
    assert number_in("none") is None


def test_only_what_follows_the_marker_counts() -> None:
    assert text_after("<think> 1 </think> 2 </think> 3", "</think>") == " 3"
    assert text_after("<think> 1", "</think>") is None
    assert text_after("1", None) == "1"


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
