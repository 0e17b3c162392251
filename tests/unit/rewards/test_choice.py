"""Multiple choice: which option a completion chooses, and which one the answer column names."""

from typing import Any

import pytest

from oncurve.errors import DataError
from oncurve.rewards import Choice, RewardSet

CITIES = ["Rome", "Paris", "A city", "Oslo"]


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("The answer is (B).", 1.0),
        ("The answer is B because (A) is in Italy.", 1.0),
        ("The answer is **B**.", 1.0),
        ("Answer: B", 1.0),
        ("Answer: B) Paris", 1.0),
        ("ANSWER: (b)", 1.0),
        ("**Answer:** option B", 1.0),
        ("Answer:\n(B)", 1.0),
        (r"So \boxed{B}.", 1.0),
        (r"\boxed{\text{B}}", 1.0),
        (r"\boxed{(B)}", 1.0),
        ("#### B", 1.0),
        ("B", 1.0),
        (" (B)\n", 1.0),
        ("B. Paris", 1.0),
        ("Answer: A\nNo. Answer: B", 1.0),
        ("(A) is in Italy, so I choose (B)", 1.0),
        ("It cannot be option A. It is option B.", 1.0),
        ("The correct option is **B**.", 1.0),
        ("", 0.0),
        ("A", 0.0),
        ("Bravo", 0.0),
        ("Answer: A or B", 0.0),
        ("Answer: B or C", 0.0),
        ("Answer: (B) and (C)", 0.0),
        ("Answer: a boat", 0.0),
        ("Answer: B's", 0.0),
        ("Be (B) or not (A)", 0.0),
        (r"\boxed{A} \boxed{B", 0.0),
        ("I think so", 0.0),
    ],
)
def test_the_letter_is_found_where_an_answer_is_marked_or_mentioned_last(completion: str, right: float) -> None:
    assert Choice()(completion, "B") == right


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("Paris", 1.0),
        ("Answer: paris.", 1.0),
        (r"\boxed{\text{Paris}}", 1.0),
        ("Answer: (B) Paris", 1.0),
        ("A city", 0.0),
        ("Answer: E", 0.0),
        ("(B) it is, see page (Z)", 1.0),
        ("Answer: London", 0.0),
    ],
)
def test_with_options_a_text_stands_for_its_letter(completion: str, right: float) -> None:
    assert Choice(options="choices")(completion, "B", CITIES) == right


@pytest.mark.parametrize("answer", ["B", "(B)", "b.", "Paris", 1])
def test_the_answer_column_is_a_letter_a_text_or_an_index_from_0(answer: Any) -> None:
    reward = Choice(options="choices")
    assert reward.complaint({"choices": CITIES, "answer": answer}) is None
    assert [reward(text, answer, CITIES) for text in ("B", "A", "C")] == [1.0, 0.0, 0.0]


def test_a_mark_can_be_required_and_an_empty_answer_does_not_apply() -> None:
    assert Choice(unmarked=False)("I choose (B)", "B") == 0.0
    assert Choice(unmarked=False)("Answer: B", "B") == 1.0
    assert Choice()("B", "") is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"answer": "Paris", "choices": "Rome Paris"}, "column 'choices' holds no options, but 'Rome Paris'"),
        ({"answer": "Paris", "choices": {"label": ["A"], "text": ["Rome", "Paris"]}}, "holds no options"),
        ({"answer": "Paris", "choices": []}, "holds no options"),
        ({"answer": "London", "choices": CITIES}, "column 'answer' holds 'London', which is none of the options"),
        ({"answer": 4, "choices": CITIES}, "column 'answer' holds 4, which is none of the options"),
        ({"answer": None, "choices": CITIES}, "column 'answer' is empty (null)"),
        ({"answer": "B"}, "needs 'choices'"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_place(row: dict[str, Any], said: str) -> None:
    with (
        RewardSet.build([{"kind": "choice", "options": "choices"}]) as rewards,
        pytest.raises(DataError) as caught,
    ):
        rewards.check_rows([{"answer": "B", "choices": CITIES}, row], lambda index: f"line {index + 1}")
    assert str(caught.value).startswith("line 2: reward choice")
    assert said in str(caught.value)
