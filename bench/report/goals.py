"""The goals and the measured figures: floors that must hold, and aims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.report.tables import best_pair, markdown

__all__ = ["GOALS", "Goal", "goals_table"]


@dataclass(frozen=True)
class Goal:
    """A figure with its floor and aim; `at_least`: more is better.

    find   returns `(value, tested value)` of the cells' results, or None where it was not measured. The tested value
           must pass the floor; for a ratio it is the lower end of its interval
    """

    model: str
    name: str
    find: Callable[[dict[str, Any]], tuple[float, float] | None]
    floor: float
    aim: float | None
    at_least: bool = True

    def passed(self, tested: float) -> bool:
        """Return whether the floor holds."""
        return tested >= self.floor if self.at_least else tested <= self.floor


def _ratio(name: str) -> Callable[[dict[str, Any]], tuple[float, float] | None]:
    def find(cells: dict[str, Any]) -> tuple[float, float] | None:
        best = best_pair(cells.get(name, {}))
        ratio = cells[name][best]["ratio"] if best else None
        return (ratio[0], ratio[1]) if ratio else None

    return find


def _ours(name: str, key: str, system: str = "oncurve") -> Callable[[dict[str, Any]], tuple[float, float] | None]:
    def find(cells: dict[str, Any]) -> tuple[float, float] | None:
        cell = cells.get(name, {})
        pair = best_pair(cell) if system == "oncurve" else system
        value = cell.get(pair, {}).get("systems", {}).get(system, {}).get(key) if pair else None
        return None if value is None else (value, value)

    return find


def _memory(name: str, peer: str, system: str = "oncurve") -> Callable[[dict[str, Any]], tuple[float, float] | None]:
    """Peak memory of `system` over that of `peer`, each from a fresh process."""

    def find(cells: dict[str, Any]) -> tuple[float, float] | None:
        ours, theirs = _ours(name, "peak_bytes", system)(cells), cells.get(name, {}).get(peer, {}).get("systems")
        if ours is None or theirs is None:
            return None
        value = ours[0] / theirs[peer]["peak_bytes"]
        return value, value

    return find


GOALS: tuple[Goal, ...] = (
    Goal("6.5M", "step, TRL's best / oncurve, f0 = 0", _ratio("6.5M fixed"), 3, 6),
    Goal("494M", "step, TRL's best / oncurve, f0 = 0", _ratio("494M fixed"), 2.5, 3.3),
    Goal("6.5M", "the same, natural lengths, f0 = 0.4", _ratio("6.5M natural"), 5, 10),
    Goal("494M", "the same, natural lengths, f0 = 0.4", _ratio("494M natural"), 3.5, 5),
    Goal("6.5M", "decode, ms a step at batch 32", _ours("6.5M fixed", "decode_ms"), 8, 4, at_least=False),
    Goal("494M", "decode / its roofline", _ours("494M fixed", "decode_roofline"), 0.75, 0.9),
    Goal("6.5M", "useful training MFU", _ours("6.5M fixed", "train_mfu"), 0.40, 0.6),
    Goal("494M", "useful training MFU", _ours("494M fixed", "train_mfu"), 0.65, 0.8),
    Goal("6.5M", "step / its roofline", _ours("6.5M fixed", "step_roofline"), 0.33, 0.6),
    Goal("494M", "step / its roofline", _ours("494M fixed", "step_roofline"), 0.60, 0.8),
    Goal("6.5M", "peak memory / TRL fp32", _memory("6.5M fixed", "trl-fp32"), 0.5, None, at_least=False),
    Goal("6.5M", "peak memory / TRL bf16", _memory("6.5M fixed", "trl-bf16"), 0.7, None, at_least=False),
    Goal("494M", "peak memory / TRL fp32", _memory("494M fixed", "trl-fp32"), 0.6, None, at_least=False),
    Goal(
        "494M",
        "peak memory, lean optimizer / TRL bf16",
        _memory("494M fixed", "trl-bf16", "oncurve-lean"),
        1.0,
        None,
        at_least=False,
    ),
    Goal("6.5M", "mismatch, fp32", _ours("6.5M fixed", "mismatch", "oncurve-fp32"), 1e-5, None, at_least=False),
    Goal("6.5M", "mismatch, bf16", _ours("6.5M fixed", "mismatch"), 2e-3, None, at_least=False),
    Goal("494M", "mismatch, bf16", _ours("494M fixed", "mismatch"), 2e-3, None, at_least=False),
)


def goals_table(table: dict[str, Any]) -> str:
    """Return every goal with its figure. Of a ratio, the lower end of the interval must pass the floor."""
    rows = []
    for goal in GOALS:
        found = goal.find(table.get("cells", {}))
        sign = ">=" if goal.at_least else "<="
        value = "not measured" if found is None else f"{found[0]:.3g}"
        if found is not None and found[0] != found[1]:
            value += f" (at least {found[1]:.3g})"
        verdict = "" if found is None else "yes" if goal.passed(found[1]) else "**no**"
        aim = "" if goal.aim is None else f"{goal.aim:g}"
        rows.append([goal.model, goal.name, f"{sign} {goal.floor:g}", aim, value, verdict])
    return markdown(["model", "figure", "floor", "aim", "measured", "floor holds"], rows)
