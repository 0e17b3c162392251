from __future__ import annotations

from hypothesis import given, strategies as st

from oncurve.data import PromptOrder
from oncurve.types import Prompt


def prompts(count: int) -> list[Prompt]:
    return [Prompt(id=100 + n, text=str(n), ids=(n,)) for n in range(count)]


def ids(order: PromptOrder, cursor: int, count: int) -> list[int]:
    return [prompt.id for prompt in order.take(cursor, count)[0]]


def test_each_epoch_is_a_permutation_and_differs_from_the_last():
    order = PromptOrder(prompts(20), seed=3)
    first, second = ids(order, 0, 20), ids(order, 20, 20)
    assert sorted(first) == sorted(second) == list(range(100, 120))
    assert first != second
    assert first != ids(PromptOrder(prompts(20), seed=4), 0, 20)


def test_without_shuffle_the_order_is_that_of_the_source():
    assert ids(PromptOrder(prompts(3), seed=3, shuffle=False), 2, 5) == [102, 100, 101, 102, 100]


@given(st.integers(1, 9), st.integers(0, 50), st.lists(st.integers(1, 12), max_size=6))
def test_what_is_taken_depends_on_the_cursor_only(size: int, start: int, counts: list[int]):
    order, cursor, taken = PromptOrder(prompts(size), seed=1), start, []
    for count in counts:
        some, cursor = order.take(cursor, count)
        taken += [prompt.id for prompt in some]
    assert cursor == start + sum(counts)
    assert taken == (ids(PromptOrder(prompts(size), seed=1), start, len(taken)) if taken else [])
