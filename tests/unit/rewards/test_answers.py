"""Where the final answer is, and which number it is."""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from oncurve.rewards import Numeric
from oncurve.rewards.answers import LONGEST_NUMBER, boxed, final_answer, marked_number


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
        ("The answer is 4. Wait, that is wrong. So the answer is 5.", "5"),
        ("Answer: 4, no: Answer: 5", "5"),
        ("#### 4 no, #### 5", "5"),
        ("#### 5 ####", "5"),
        ("#### 5\n####", "5"),
        ("The answer is (A). No, the answer is (B).", "(B)"),
        ("The answer is 5. This answer is correct.", "5. This answer is correct"),
        ("The answer is right.", "right"),
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
        ("(-5)", -5),
        ("first 1, then 22", 22),
        ("1,234,567.", 1234567),
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


@pytest.mark.parametrize(
    "text",
    [
        *(
            "not 5",
            "it is not 5",
            "not equal to 5",
            "isn't 5",
            "≠ 5",
            "x != 5",
            r"x \neq 5",
            "never 5",
            r"\text{not } 5",
        ),
        *(
            "> 5",
            ">5",
            "x > 5",
            ">= 5",
            "x ≤ 5",
            r"x \geq 5",
            r"$x \le 5$",
            "5 < x",
            "5 < x < 6",
            "more than 5",
            "5 ≤ x",
        ),
        *("5-6", "5 - 6", "5–6", "5 to 6", "between 5 and 6", "$5-$6", "5~6", "5 -6", r"5 \text{ to } 6"),
        *(
            "5 or 6",
            "5, or 6",
            "either 5 or 6",
            "5 or maybe 6",
            "x = 5 or x = 6",
            "5 and 6",
            "5/6 or 6",
            r"5\text{ or }6",
        ),
        *("5, 6", "(5, 6)", "[5,6)", "5; 6", "x = 5, y = 6", "1,22", "12,3456", "5, 6, and 7", "5 & 6", "5 ± 1"),
        *("5 + 6", "5*6", "5 × 6", r"5 \times 6", "5 times 6", "5 plus 6", "5 / 6", "not 5 or 6"),
    ],
)
def test_a_text_that_states_no_single_number_has_none(text: str) -> None:
    for number in ("5", "6", "-6"):
        assert Numeric()(f"The answer is {text}.", number) == Numeric()(f"#### {text}", number) == 0.0
        assert Numeric()(text, number) == 0.0
    assert Numeric()("#### 5", text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("not 4 but 5", "5, not 6", "5, which is > 4", "5 or so", "0.5e1 or 5", "10/2 or 5", "500% or 5", "5 and 5"),
        *(
            "5 apples in 6 bags",
            "5 of 6",
            "<<2+3=5>>5",
            "2+3 => 5",
            "2 + 3 -> 5",
            "<b>5</b>",
            "<5>",
            "2 plus 3 equals 5",
        ),
        *("2 to the third minus 3 = 5", "at least 5", "≈ 5", "~5", "5 apples and 6 pears", "5 (2 + 3)"),
    ],
)
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
