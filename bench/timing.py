"""Timing several functions in turn, and what follows: ratios and slopes with their intervals."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["exponent", "line", "ratio_interval", "slope_ratio", "time_in_turn"]

RESAMPLES = 2000


def time_in_turn(
    ways: dict[str, Callable[[], Any]],
    repeats: int,
    at_least: float = 2e-4,
    budget: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return seconds of one call of each function, in `repeats` rounds whose order alternates, so that all see the same
    noise.

    A sample is the mean over as many calls as take `at_least` seconds, so that the clock's own cost does not count. No
    round begins after `budget` seconds, except the first. Each function is called once before, unmeasured. On a busy
    machine `time.process_time` is the better clock.
    """
    until = time.perf_counter() + budget
    calls = {name: _calls(way, at_least) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats):
        if number and time.perf_counter() > until:
            break
        for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
            started = clock()
            for _ in range(calls[name]):
                ways[name]()
            times[name].append((clock() - started) / calls[name])
    return times


def _calls(way: Callable[[], Any], at_least: float) -> int:
    way()
    started = time.perf_counter()
    way()
    return max(1, round(at_least / max(1e-9, time.perf_counter() - started)))


def ratio_interval(
    above: Sequence[float], below: Sequence[float], of: Callable[[list[float]], float] = statistics.median
) -> list[float]:
    """Return `[value, low, high]`: of(above) / of(below), and its bootstrap 95 % interval; samples go in pairs."""
    pairs = list(zip(above, below, strict=True))
    draw = random.Random(0)
    resampled = [_ratio(draw.choices(pairs, k=len(pairs)), of) for _ in range(RESAMPLES)]
    return [_ratio(pairs, of), *_interval(resampled)]


def _ratio(pairs: Sequence[tuple[float, float]], of: Callable[[list[float]], float]) -> float:
    return of([a for a, _ in pairs]) / of([b for _, b in pairs])


def _interval(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[int(0.025 * len(ordered))], ordered[int(0.975 * len(ordered))]]


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Least squares: `(a, b)` of `y = a + b·x`."""
    slope, intercept = statistics.linear_regression(x, y)
    return intercept, slope


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the power p of `y ~ xᵖ` between the last two points: 1 where doubling x doubles y."""
    return math.log(y[-1] / y[-2]) / math.log(x[-1] / x[-2])


def slope_ratio(
    x: Sequence[float], above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]
) -> list[float] | None:
    """Return `[value, low, high]`: slope of the medians of `above` over that of `below`, samples by point of `x`.

    The interval is a bootstrap over each point's samples. None for fewer than two points, or where `below` does not
    rise.
    """
    if len(x) < 2:
        return None
    draw = random.Random(0)

    def slope(samples: Sequence[Sequence[float]]) -> float:
        return line(x, [statistics.median(one) for one in samples])[1]

    def again(samples: Sequence[Sequence[float]]) -> list[list[float]]:
        return [draw.choices(list(one), k=len(one)) for one in samples]

    base = slope(below)
    if base <= 0:
        return None
    pairs = ((slope(again(above)), slope(again(below))) for _ in range(RESAMPLES // 4))
    return [slope(above) / base, *_interval([a / b for a, b in pairs if b > 0])]
