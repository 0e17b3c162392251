"""The cells as Markdown: whole steps, phases, tokens, efficiency, memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.cases import SYSTEMS
from bench.compare.cells import TRL
from bench.systems.probe import PHASES

__all__ = [
    "best_pair",
    "cells_table",
    "efficiency_table",
    "limits_first",
    "limits_table",
    "markdown",
    "phases_table",
    "tokens_table",
]

ABSENT = "-"


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def best_pair(cell: dict[str, Any]) -> str | None:
    """TRL's setting with the fastest step in this cell; None where none was measured."""
    measured = [name for name in TRL if "systems" in cell.get(name, {})]
    return min(measured, key=lambda name: cell[name]["systems"][name]["seconds"], default=None)


def measured_systems(cell: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return `(system, its figures, its pair)`: oncurve first, as measured with TRL's best, then the others in their
    order.
    """
    rows = []
    best = best_pair(cell)
    if best is not None:
        rows.append(("oncurve", cell[best]["systems"]["oncurve"], cell[best]))
    for other, pair in cell.items():
        if "systems" in pair:
            rows.append((other, pair["systems"][other], pair))
    return rows


def limits_first(tables: Iterable[dict[str, Any]]) -> str:
    """Return what shares of their limits oncurve's steps have, of each machine: in the dtype that a user gets there.

    Limits are those of the same run. TRL's setting is that whose steps were measured in turn with ours.
    """
    heads = [
        "processor",
        "cell",
        "dtype",
        "step / limit",
        "decode / limit",
        "training / limit",
        "TRL's setting",
        "measured",
    ]
    rows = []
    for table in tables:
        about = table["machine"]
        sets = about["instruction_sets"][0] if about["instruction_sets"] else "no AVX2"
        for name, cell in table.get("cells", {}).items():
            best = best_pair(cell)
            if best is not None:
                own = cell[best]["systems"]["oncurve"]
                shares = [_number(own[key]) for key in ("step_roofline", "decode_roofline", "train_mfu")]
                when = f"{cell[best]['at'][:10]}, {cell[best]['commit']}"
                machine = f"{about['processor'].strip()} ({sets}), {about['cores']} cores"
                rows.append([machine, name, own["dtype"], *shares, SYSTEMS[best].label, when])
    return markdown(heads, rows)


def cells_table(table: dict[str, Any]) -> str:
    """Return seconds of a step, how many times as long as oncurve's, and memory."""
    heads = [
        "cell",
        "system",
        "timed steps",
        "step",
        "times oncurve's (95 % interval)",
        "peak memory",
        "oncurve's memory / its",
    ]
    rows, notes = [], []
    for name, cell in table.get("cells", {}).items():
        best = best_pair(cell)
        for system, own, pair in measured_systems(cell):
            label = SYSTEMS[system].label + (" (best of TRL)" if system == best else "")
            ratio = pair.get("ratio") if system != "oncurve" else None
            shown = f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else ABSENT
            memory = f"{pair['memory_ratio']:.2f}" if ratio else ABSENT
            timed = str(len(own["each"]))
            rows.append(
                [name, label, timed, f"{own['seconds']:.2f} s", shown, f"{own['peak_bytes'] / 1e9:.2f} GB", memory]
            )
        notes += [f"{name}, {SYSTEMS[o].label}: not run: {p['skipped']}" for o, p in cell.items() if "skipped" in p]
        notes += [
            f"{name}, {SYSTEMS[other].label}: one system after the other, because memory did not hold both"
            for other, pair in cell.items()
            if pair.get("order") == "blocks"
        ]
    return markdown(heads, rows) + "".join(f"\n\n{note}." for note in notes)


def phases_table(table: dict[str, Any]) -> str:
    """Mean seconds of each phase, of oncurve and of TRL's best."""
    heads = ["cell", "system", *PHASES, "rest", "step (mean)"]
    rows = []
    for name, cell in table.get("cells", {}).items():
        for system, own in _two(cell):
            phases = own["phases"]
            whole = sum(own["each"]) / len(own["each"])
            seconds = [f"{phases[phase]:.3f}" if phase in phases else ABSENT for phase in PHASES]
            rest = whole - sum(phases.get(phase, 0.0) for phase in PHASES)
            rows.append([name, SYSTEMS[system].label, *seconds, f"{rest:.3f}", f"{whole:.3f}"])
    return markdown(heads, rows)


def tokens_table(table: dict[str, Any]) -> str:
    """Return token positions processed per step, of oncurve and of TRL's best."""
    heads = ["cell", "system", "executed", "useful", "duplicated", "padding and other"]
    rows = [
        [name, SYSTEMS[system].label, *(f"{own['tokens'][key]:,.0f}" for key in own["tokens"])]
        for name, cell in table.get("cells", {}).items()
        for system, own in _two(cell)
    ]
    return markdown(heads, rows)


def efficiency_table(table: dict[str, Any]) -> str:
    """Return how close both come to the machine's limits."""
    heads = [
        "cell",
        "system",
        "decode, ms a step",
        "decode / its roofline",
        "useful training MFU",
        "ideal step",
        "step / its roofline",
        "mismatch",
    ]
    rows = []
    for name, cell in table.get("cells", {}).items():
        for system, own in _two(cell):
            mismatch = own["mismatch"]
            rows.append(
                [
                    name,
                    SYSTEMS[system].label,
                    *(_number(own[key]) for key in ("decode_ms", "decode_roofline", "train_mfu")),
                    f"{own['ideal_seconds']:.3f} s",
                    _number(own["step_roofline"]),
                    f"{mismatch:.1e}" if system.startswith("oncurve") and mismatch is not None else ABSENT,
                ]
            )
    return markdown(heads, rows)


def limits_table(table: dict[str, Any]) -> str:
    """Return the machine's limits, before and after the pair of oncurve and TRL's best."""
    heads = ["cell", "when", "fp32, GFLOP/s", "bf16, GFLOP/s", "memory read, GB/s", "memory copy, GB/s"]
    rows = []
    for name, cell in table.get("cells", {}).items():
        best = best_pair(cell)
        for when in ("before", "after") if best else ():
            found = cell[best]["limits"][when]
            speeds = [f"{found[key] / 1e9:.0f}" for key in ("float32", "bfloat16")]
            rows.append([name, when, *speeds, *(f"{found[key] / 1e9:.1f}" for key in ("read", "copy"))])
    return markdown(heads, rows)


def _two(cell: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """oncurve and TRL's best, measured together, then oncurve's other settings."""
    best = best_pair(cell)
    both = [(system, cell[best]["systems"][system]) for system in ("oncurve", best)] if best else []
    alone = [(other, pair["systems"][other]) for other, pair in cell.items() if pair.get("order") == "alone"]
    return both + alone


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"
