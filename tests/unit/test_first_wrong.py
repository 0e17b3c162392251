"""Finding the first wrong step: the likeliest one by enumeration, and the baseline that it is measured against."""

import itertools
import math
import random

import pytest

from oncurve.evaluate.first_wrong import find_first_wrong, first_wrong, score_first_wrong
from oncurve.evaluate.intervals import paired_difference, wilson
from oncurve.types import LabelledSteps


def enumerated(right: list[float]) -> list[tuple[float, int | None]]:
    """How likely each place of the first wrong step is: summed over all ways in which steps can be right or wrong."""
    chances: dict[int | None, float] = {}
    for way in itertools.product((True, False), repeat=len(right)):
        chance = math.prod(p if is_right else 1 - p for p, is_right in zip(right, way, strict=True))
        place = None if all(way) else way.index(False)
        chances[place] = chances.get(place, 0.0) + chance
    return sorted(((chance, place) for place, chance in chances.items()), key=lambda item: -item[0])


def test_the_likeliest_place_is_that_of_all_ways_enumerated() -> None:
    chance = random.Random(0)
    found = set()
    for _ in range(300):
        right = [chance.random() ** chance.choice((0.2, 1, 3)) for _ in range(chance.randint(1, 6))]
        (best, place), *others = enumerated(right)
        if not others or best - others[0][0] > 1e-9:
            assert find_first_wrong(right) == place, right
            found.add(place)
    assert {None, 0, 1, 2} <= found


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ((1.0, 0.0, None), 1),
        ((1.0, 1.0), None),
        ((None, None), None),
        ((None, 0.49, 0.0), 1),
        ((0.5, 1.0), None),
        ((), None),
    ],
)
def test_the_first_wrong_step_is_the_first_label_below_one_half(
    labels: tuple[float | None, ...], place: int | None
) -> None:
    assert first_wrong(labels) == place


def labelled(*labels: float | None) -> LabelledSteps:
    text = "\n".join("x" for _ in labels)
    return LabelledSteps("", text, tuple(min(2 * n + 2, len(text)) for n in range(len(labels))), labels)


def test_what_is_found_stands_beside_the_most_frequent_place_of_the_training_data() -> None:
    trained = [labelled(1, 0), labelled(1, 1), labelled(1, 1, 1), labelled(0, None)]  # most often: none
    held_out = [labelled(1, 0), labelled(1, 1), labelled(0, None), labelled(1, 0), labelled(1, 1, 1)]
    right = [[0.9, 0.2], [0.9, 0.9], [0.8, 0.1], [0.6, 0.1], [0.9, 0.9, 0.9]]  # says 1, none, 1, 1, none
    score = score_first_wrong(trained, held_out, right)
    assert score.count == 5
    assert score.found == wilson(4, 5)
    assert score.majority == wilson(2, 5)
    assert score.gain == paired_difference([False, True, False, False, True], [True, True, False, True, True])
    assert score.gain.value == pytest.approx(0.4)
    low, high = 100 * score.gain.low, 100 * score.gain.high
    assert score.text() == (
        "first wrong step found in 80.0 % of 5 held-out completions; the most frequent position is right in 40.0 % "
        f"(+40.0 points, 95 % interval {low:+.1f} to {high:+.1f})"
    )
    assert low < 40 < high


def test_the_intervals_are_those_of_the_formulas() -> None:
    trained = [labelled(0, None)]
    held_out = [labelled(0, None)] * 6 + [labelled(1, 0)] * 4
    score = score_first_wrong(trained, held_out, [[0.9, 0.1]] * 10)  # always says 1: right in 4, the baseline in 6
    z, n, p = 1.959964, 10, 0.4
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    assert score.found.low == pytest.approx((centre - half) / scale, rel=1e-6)
    assert score.found.high == pytest.approx((centre + half) / scale, rel=1e-6)
    won, lost, all_of_them = 4, 6, 12  # Agresti and Min: half a pair is added to won and to lost
    spread = z * math.sqrt((won + lost + 1) - (won - lost) ** 2 / all_of_them) / all_of_them
    assert score.gain.value == pytest.approx(-0.2)
    assert score.gain.low == pytest.approx((won - lost) / all_of_them - spread, rel=1e-6)
    assert score.gain.high == pytest.approx((won - lost) / all_of_them + spread, rel=1e-6)
