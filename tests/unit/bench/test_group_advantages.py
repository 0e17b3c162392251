import pytest
from bench.timing import exponent, line, ratio_interval, slope_ratio, time_in_turn


def test_ways_are_timed_in_turn_and_each_is_warmed_up() -> None:
    called: list[str] = []
    times = time_in_turn({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 2, at_least=0.0)
    assert called == ["a", "a", "b", "b", "a", "b", "b", "a"]
    assert [len(samples) for samples in times.values()] == [2, 2]


def test_there_is_one_round_whatever_the_budget() -> None:
    assert len(time_in_turn({"a": lambda: None}, 9, at_least=0.0, budget=0.0)["a"]) == 1


def test_the_ratio_is_of_medians_and_lies_in_its_interval() -> None:
    value, low, high = ratio_interval([4.0, 6.0, 8.0], [2.0, 2.0, 2.0])
    assert value == 3.0
    assert 2.0 <= low <= value <= high <= 4.0


def test_a_line_and_an_exponent_are_found_again() -> None:
    assert line([1, 2, 3], [5.0, 7.0, 9.0]) == pytest.approx((3.0, 2.0))
    assert exponent([1, 2, 4], [9.0, 4.0, 16.0]) == pytest.approx(2.0)


def test_slopes_are_compared_whatever_stands_before_them() -> None:
    x = [1, 2, 3]
    steep, flat = [[10.0 + 4 * at] * 3 for at in x], [[0.5 * at] * 3 for at in x]
    assert slope_ratio(x, flat, steep) == pytest.approx([0.125] * 3)
    assert slope_ratio([1], flat[:1], steep[:1]) is None
    assert slope_ratio(x, flat, [[1.0]] * 3) is None
