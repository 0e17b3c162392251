"""Texts and pages by the templates of the package, `oncurve/templates`. Nothing here imports torch.

A curve is numbers that a template can draw: points, ticks, a smoothed line; no markup.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import jinja2

from oncurve.base.output import visible
from oncurve.metrics import Metric, declared, short

WIDTH, HEIGHT = 360, 168
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 24
MOST_POINTS = 400  # more cannot be told apart on a screen, and the page stays small
MOST_STRIPS = 80  # places to point at; narrower ones are hard to hit
SPARSE = 25  # up to this number each point is drawn as a dot

UNITLESS = frozenset({"1", "as named", "as the objective", "reward", "fraction"})


def charts_of(keys: Iterable[str], metrics: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the charts of those of the `keys` that a line has."""
    return [chart for key in keys if (chart := chart_of(key, metrics)) is not None]


def chart_of(key: str, metrics: Sequence[Mapping[str, float]]) -> dict[str, Any] | None:
    """Return the chart of one key of `metrics` (each with a `step`); None where no line has it.

    It is in the coordinates of a `WIDTH` x `HEIGHT` drawing. `line` and `raw` are the `points` attribute of an SVG
    polyline: the smoothed curve, and the values as they are ("" where nothing was smoothed). `ticks` are (place,
    label); `points` are (x, y, words, left edge and width of the strip in which the words are shown).
    """
    series = [(float(line["step"]), float(line[key])) for line in metrics if key in line and "step" in line]
    series = [(step, value) for step, value in series if math.isfinite(value)]
    if not series:
        return None
    about = _about(key)
    values = [value for _, value in series]
    low, high = _range(values, about.unit)
    marks = nice_ticks(low, high, 4)
    low, high = min(low, marks[0]), max(high, marks[-1])
    first, last = series[0][0], series[-1][0]

    def x(step: float) -> float:
        share = 0.5 if last == first else (step - first) / (last - first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)

    def y(value: float) -> float:
        return round(TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM), 2)

    shown = _thinned(series, MOST_POINTS)
    smooth = _thinned([(step, value) for (step, _), value in zip(series, smoothed(values), strict=True)], MOST_POINTS)
    raw = " ".join(f"{x(step)},{y(value)}" for step, value in shown)
    line = " ".join(f"{x(step)},{y(value)}" for step, value in smooth)
    steps = [step for step in nice_ticks(first, last, 5) if first < step <= last and step == int(step)]
    steps = [first, *(step for step in steps if x(step) - x(first) > 40)]
    return {
        "key": key,
        "about": about,
        "unit": "" if about.unit in UNITLESS else about.unit,
        "first": short(values[0]),
        "last": short(values[-1]),
        "line": line,
        "raw": raw if raw != line else "",
        "points": _points([(x(step), y(value), step, value) for step, value in _thinned(series, MOST_STRIPS)]),
        "dots": len(shown) <= SPARSE,
        "x_ticks": [(x(step), f"{step:g}") for step in steps],
        "y_ticks": [(y(value), short(value)) for value in marks],
        "baseline": y(0.0) if low <= 0.0 <= high else HEIGHT - BOTTOM,
    }


def _about(key: str) -> Metric:
    """Return the key's declaration; a run of a later version may have keys that this one does not declare."""
    try:
        return declared(key)
    except KeyError:
        return Metric(key, "last", "", "not known", "This version of oncurve does not declare it.", "not known")


def _range(values: Sequence[float], unit: str) -> tuple[float, float]:
    """Return the ends of the vertical axis: fractions from 0, other values with 0 where it is near."""
    low, high = min(values), max(values)
    if unit == "fraction" and low >= 0:
        return 0.0, max(high, 0.05)
    if low >= 0 and low < 0.6 * high:
        low = 0.0
    if low == high:
        room = abs(low) * 0.1 or 1.0
        return low - room if low else 0.0, high + room
    return low, high


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` + 1 round numbers (1, 2 or 5 times a power of ten apart) that reach from `low` to `high`."""
    if not low < high:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough * (1 - 1e-9)), 10 * power)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, last + 1)]


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the mean over a window of an eighth of the series around each value; short series stay as they are."""
    reach = len(values) // 16 if len(values) > SPARSE else 0
    if reach == 0:
        return list(values)
    sums = list(accumulate(values, initial=0.0))
    ends = [(max(0, i - reach), min(len(values), i + reach + 1)) for i in range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in ends]


def _points(drawn: Sequence[tuple[float, float, float, float]]) -> list[tuple[float, float, str, float, float]]:
    """Points of (x, y, step, value), each with a strip that reaches half-way to its neighbours."""
    xs = [LEFT, *(x for x, *_ in drawn), WIDTH - RIGHT]
    points = []
    for place, (x, y, step, value) in enumerate(drawn, start=1):
        left = (xs[place - 1] + x) / 2 if place > 1 else LEFT
        right = (x + xs[place + 1]) / 2 if place < len(drawn) else WIDTH - RIGHT
        words = f"step {step:g}: {short(value)}"
        points.append((x, y, words, round(left, 2), round(right - left, 2)))
    return points


def _thinned(series: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` of the points: each the mean of its neighbours, at the last one's step."""
    size = math.ceil(len(series) / most)
    pieces = [series[start : start + size] for start in range(0, len(series), size)]
    return [(piece[-1][0], math.fsum(value for _, value in piece) / len(piece)) for piece in pieces]


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("oncurve", "templates"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # markup is made of such texts
    )
    templates.globals["fmt"] = format
    templates.filters["inline"] = lambda text: " ".join(text.replace("`", "'").split())  # of Markdown
    templates.filters |= {"one_line": one_line, "figure": figure}
    templates.filters["number"] = lambda value: "none" if value is None else short(value)
    templates.filters["signed"] = lambda value: "none" if value is None else f"{value:+.2f}".replace("-", "−")
    return templates


def rendered(template: str, **values: Any) -> str:
    """Return a text by a template of `oncurve/templates`. Control characters in it are visible; HTML is escaped."""
    return _templates().get_template(template).render({"width": WIDTH, "height": HEIGHT, **values})


def figure(value: Any) -> str:
    """Return a value of a row in few characters; "-" for None."""
    return "-" if value is None else short(value) if isinstance(value, float) else visible(str(value))


def one_line(text: Any) -> str:
    """Return a text on one line, of at most 60 characters; "..." ends what is cut."""
    line = visible(" ".join(str(text).split()))
    return line if len(line) <= 60 else line[:57] + "..."
