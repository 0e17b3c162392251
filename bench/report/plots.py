"""The cells as pictures: steps by phase, and every system's step as a multiple of oncurve's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.cases import SYSTEMS
from bench.report.tables import best_pair, measured_systems
from bench.systems.probe import PHASES

__all__ = ["plot_phases", "plot_ratios"]

COLOURS = ("#4c78a8", "#72b7b2", "#eeca3b", "#b279a2", "#e45756", "#9d755d", "#bab0ac")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "oncurve"  # the same picture has the same bytes
    from matplotlib import pyplot

    return pyplot


def plot_phases(table: dict[str, Any], path: Path) -> None:
    """A panel per cell: a step of oncurve and of TRL's best, stacked by phase."""
    cells = [(name, cell) for name, cell in table.get("cells", {}).items() if best_pair(cell)]
    figure, panels = _pyplot().subplots(
        len(cells), 1, figsize=(8, 0.5 + 1.25 * len(cells)), squeeze=False, layout="constrained"
    )
    for axes, (name, cell) in zip(panels[:, 0], cells, strict=True):
        best = str(best_pair(cell))
        for place, system in enumerate((best, "oncurve")):
            own = cell[best]["systems"][system]
            left, whole = 0.0, sum(own["each"]) / len(own["each"])
            parts = {phase: own["phases"].get(phase, 0.0) for phase in PHASES}
            parts["rest"] = max(0.0, whole - sum(parts.values()))
            for (phase, seconds), colour in zip(parts.items(), COLOURS, strict=True):
                axes.barh(place, seconds, left=left, color=colour, label=phase if place == 0 else None)
                left += seconds
        axes.set_yticks((0, 1), (SYSTEMS[best].label, "oncurve"))
        axes.set_title(f"{name}: seconds a step", fontsize=9, loc="left")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(labels), fontsize=8, loc="outside lower center")
    _save(figure, path)


def plot_ratios(table: dict[str, Any], path: Path) -> None:
    """Every system's step as a multiple of oncurve's, with its interval; and its peak memory next to oncurve's."""
    bars = [
        (f"{name}, {SYSTEMS[system].label}", pair["ratio"], 1.0 / pair["memory_ratio"])
        for name, cell in table.get("cells", {}).items()
        for system, _, pair in measured_systems(cell)
        if system != "oncurve" and "ratio" in pair
    ]
    figure, (time, memory) = _pyplot().subplots(
        1, 2, figsize=(10, 0.8 + 0.28 * len(bars)), sharey=True, layout="constrained"
    )
    places = list(range(len(bars)))[::-1]
    for place, (_, (value, low, high), held) in zip(places, bars, strict=True):
        time.barh(place, value, color=COLOURS[0], xerr=[[value - low], [high - value]], error_kw={"lw": 1})
        memory.barh(place, held, color=COLOURS[1])
    time.set_yticks(places, [label for label, _, _ in bars], fontsize=8)
    for axes, title in ((time, "step"), (memory, "peak memory")):
        axes.axvline(1.0, color="black", lw=0.8)
        axes.set_title(f"{title}, as a multiple of oncurve's", fontsize=9, loc="left")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    _pyplot().close(figure)
