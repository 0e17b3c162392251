"""The quantities that the growth curves sweep, and the three claims that they test."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from bench.timing import exponent, line, slope_ratio

__all__ = ["CURVES", "SLOPE_TOLERANCE", "Curve", "fits", "memory_verdict", "prompt_verdict", "sampler_verdict"]

SLOPE_TOLERANCE = 1.25
"""The limit of G times our slope in P over TRL's: completions attend to the prompt G times in both."""

FLAT = 1.15
"""The limit of memory at the largest batch over memory at the first one larger than a micro-batch."""

SAMPLER_SHARE = 1 / 20


@dataclass(frozen=True)
class Curve:
    """One quantity swept, the others constant.

    axis    the field of `passes.Point` that is swept
    label   its name in results and plots
    base    the constant fields
    """

    axis: str
    label: str
    values: tuple[int, ...]
    base: dict[str, int] = field(default_factory=dict)

    def points(self, quick: bool) -> list[dict[str, int]]:
        """Return the batches, in order; `quick`: the first three."""
        values = self.values[:3] if quick else self.values
        return [{**self.base, self.axis: value} for value in values]


CURVES: dict[str, Curve] = {
    "P": Curve("prompt_tokens", "prompt tokens P", (64, 128, 256, 512, 1024, 2048), {"completion": 32}),
    "G": Curve("group_size", "completions a prompt G", (2, 4, 8, 16, 32, 64)),
    "C": Curve("completion", "completion tokens C", (32, 64, 128, 256, 512, 1024), {"prompt_tokens": 128}),
    "M": Curve("prompts", "prompts M", (1, 2, 4, 8, 16, 32)),
    "V": Curve("vocabulary", "vocabulary V", (4096, 8192, 32768, 151936)),
}
"""The curves of training time."""


def fits(curve: Curve, x: list[int], samples: list[dict[str, list[float]]]) -> dict[str, Any]:
    """By system: `x`, median seconds, intercept and slope of a line through them, and the exponent at the end."""
    found: dict[str, Any] = {"axis": curve.label, "base": curve.base}
    for system in ("oncurve", "trl"):
        own = [(value, sample[system]) for value, sample in zip(x, samples, strict=True) if system in sample]
        at, seconds = [value for value, _ in own], [statistics.median(times) for _, times in own]
        intercept, slope = line(at, seconds)
        found[system] = {
            "x": at,
            "seconds": seconds,
            "samples": [times for _, times in own],
            "intercept": intercept,
            "slope": slope,
            "exponent": exponent(at, seconds),
        }
    return found


def _both(curve: dict[str, Any]) -> tuple[list[int], list[list[float]], list[list[float]]]:
    """Return the points of both systems: x, samples of oncurve, samples of TRL."""
    ours, theirs = curve["oncurve"], curve["trl"]
    x = [value for value in ours["x"] if value in theirs["x"]]
    return (
        x,
        [ours["samples"][ours["x"].index(value)] for value in x],
        [theirs["samples"][theirs["x"].index(value)] for value in x],
    )


def prompt_verdict(curve: dict[str, Any], group_size: int) -> dict[str, Any]:
    """Return training time's slope in P is 1/G of TRL's: slope of ours times G over slope of TRL's, about 1 or
    below.
    """
    ratio = slope_ratio(*_both(curve))
    scaled = None if ratio is None else [group_size * value for value in ratio]
    return {
        "claim": f"training time's slope in P is 1/G of TRL's: ours x {group_size} / TRL's <= {SLOPE_TOLERANCE}",
        "value": scaled,
        "pass": scaled is not None and scaled[0] <= SLOPE_TOLERANCE,
    }


def sampler_verdict(curve: dict[str, Any]) -> dict[str, Any]:
    """Return the sampler's slope in V is at most 1/20 of TRL's."""
    ratio = slope_ratio(*_both(curve))
    return {
        "claim": "the sampler's slope in V is at most 1/20 of TRL's: ours / TRL's <= 0.05",
        "value": ratio,
        "pass": ratio is not None and ratio[0] <= SAMPLER_SHARE,
    }


def memory_verdict(curves: dict[str, Any]) -> dict[str, Any]:
    """Return memory is flat in G beyond the micro-batch: what an update adds at the largest G, over the first beyond
    it.

    The result also has the growth over M and TRL's; the claim is about oncurve and G.
    """
    grown = {system: {axis: _grown(curve[system]) for axis, curve in curves.items()} for system in ("oncurve", "trl")}
    ours = grown["oncurve"]["G"]
    return {
        "claim": f"memory is flat in G beyond the micro-batch: what an update adds grows by at most {FLAT} x",
        "value": ours,
        "grown": grown,
        "pass": ours is not None and ours <= FLAT,
    }


def _grown(points: list[dict[str, Any]]) -> float | None:
    """Added bytes at the last point over those at the first beyond the micro-batch; None: no two such points."""
    beyond = [point["peak"] - point["before"] for point in points if point["beyond"]]
    return beyond[-1] / beyond[0] if len(beyond) > 1 and beyond[0] > 0 else None
