import pytest

from oncurve.report.charts import HEIGHT, WIDTH, chart_of, nice_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.5, 1]),
        (0.3, 9.7, [0, 5, 10]),
        (0, 0.05, [0, 0.02, 0.04, 0.06]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (3, 3, [3]),
        (1, 120, [0, 50, 100, 150]),
    ],
)
def test_ticks_are_round_and_reach_both_ends(low, high, ticks) -> None:
    assert nice_ticks(low, high, 4) == ticks


def test_a_chart_lies_within_its_drawing() -> None:
    chart = chart_of("reward/mean", [{"step": s, "reward/mean": (s * 37 % 11) / 10} for s in range(1, 1001)])
    places = [tuple(map(float, pair.split(","))) for pair in f"{chart.line} {chart.raw}".split()]
    assert len(places) <= 800
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert len(chart.points) <= 80
    assert not chart.dots
