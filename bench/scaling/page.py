"""`python -m bench.scaling.page` writes the tables of `docs/scaling.md`: published steps next to simulated ones."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.learning.runs import filled
from bench.scaling.published import AREAL_TOKENS, ROWS, TABLES, Row, areal, step_of

__all__ = ["PAGE", "TOLERANCE", "error", "held_out", "page_of"]

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
TOLERANCE = 0.15


def simulated(row: Row) -> float:
    """Return the step that the simulator gives."""
    return step_of(row.setup).step_seconds


def error(row: Row) -> float:
    """Return simulated over published, less 1. Of a row with `ratio_to`: of the two rows' ratio."""
    if not row.ratio_to:
        return simulated(row) / row.step - 1
    other = next(each for each in ROWS if each.table == row.table and each.name == row.ratio_to)
    return (simulated(other) / simulated(row)) / (other.step / row.step) - 1


def held_out() -> list[Row]:
    """Return the rows that no constant was taken from."""
    return [row for row in ROWS if not row.calibrates]


def lines_of(table: str) -> list[str]:
    """Return a published table's rows."""
    lines = [f"### {TABLES[table]}", ""]
    lines += [
        "| row | published | simulated | error | trainer busy | engines busy | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in (each for each in ROWS if each.table == table):
        found = step_of(row.setup)
        off = error(row)
        says = f"calibrates: {row.calibrates}" if row.calibrates else "held out"
        if row.ratio_to:
            other = next(each for each in ROWS if each.table == table and each.name == row.ratio_to)
            says += (
                f"; {other.step / row.step:.2f} times as fast published, {simulated(other) / simulated(row):.2f} here"
            )
        if not row.calibrates and abs(off) > TOLERANCE:
            says += ", **missed**"
        lines.append(
            f"| {row.name} | {row.step:.1f} s | {found.step_seconds:.1f} s | {off:+.1%} | {found.trainer_busy:.0%} "
            f"| {found.rollout_busy:.0%} | {says} |"
        )
    return [*lines, ""]


def summary() -> str:
    """Say how many held-out rows are within the tolerance."""
    rows = held_out()
    good = [row for row in rows if abs(error(row)) <= TOLERANCE]
    off = [(f"{TABLES[row.table].partition(':')[0]}, {row.name}", error(row)) for row in rows if row not in good]
    missed = "; ".join(f"{name} ({each:+.0%})" for name, each in off)
    steps = [row for row in good if not row.ratio_to]
    return (
        f"Of {len(rows)} rows that are held out, {len(good)} are within 15 %: {len(steps)} steps of verl and "
        f"{len(good) - len(steps)} ratios of AReaL. Missed: {missed or 'none'}."
    )


def lengths() -> str:
    """Return AReaL's ratios with half and twice the assumed length."""
    parts = []
    for name, slow in SLOWNESS_BY_TOKENS.items():
        ratios = []
        for tokens, factor in slow.items():
            by_turns, apart = areal(name, tokens, factor)
            ratios.append(f"{step_of(by_turns).step_seconds / step_of(apart).step_seconds:.2f} ({tokens:,.0f} tokens)")
        parts.append(f"{name}: {', '.join(ratios)}")
    return f"AReaL's ratio with half and twice the assumed {AREAL_TOKENS:,.0f} tokens: " + "; ".join(parts) + "."


SLOWNESS_BY_TOKENS = {
    "1.5B": {4500.0: 5.42, 18000.0: 2.6},
    "7B": {4500.0: 3.21, 18000.0: 1.82},
    "14B": {4500.0: 4.87, 18000.0: 2.41},
    "32B": {4500.0: 3.44, 18000.0: 2.07},
}
"""As AREAL_SLOWNESS, from `bench.scaling.fit`."""


def page_of(page: str) -> str:
    """Return `page` with its tables."""
    body = "\n".join(line for table in TABLES for line in lines_of(table))
    return filled(filled(page, "tables", body), "summary", f"{summary()}\n\n{lengths()}")


def main() -> None:
    """Write the page, or with `--table` print the tables."""
    if "--table" in sys.argv[1:]:
        for table in TABLES:
            print("\n".join(lines_of(table)))
        print(summary())
        return
    PAGE.write_text(page_of(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
