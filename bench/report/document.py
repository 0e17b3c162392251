"""`python -m bench.report.document` writes the tables and plots of `docs/performance.md` from the committed results.

The page names its results file in a line of its own, and each generated part is between two markers. The rest is
written by hand.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import tables
from bench.report.goals import goals_table
from bench.report.tables import cells_table
from bench.results import FOLDER, Results

__all__ = ["PAGE", "cells_table", "filled", "first_table", "main", "results_of"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
FIGURES = PAGE.with_suffix("")
RESULTS = re.compile(r"<!-- results: (\S+) -->")
BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
NOT_MEASURED = "Not measured yet."
OTHERS = {
    "growth": "bench.growth.measure",
    "advantages": "bench.compare.group_advantages",
    "learning": "bench.learning.measure",
}


def results_of(page: str) -> dict[str, Any]:
    """Return the results that the page names; empty where the file does not exist."""
    named = RESULTS.search(page)
    return Results.read(ROOT / named[1]) if named else {}


def filled(page: str, table: dict[str, Any]) -> str:
    """Return the page with every part between markers rewritten. Raises KeyError for an unknown part."""
    return BLOCK.sub(lambda found: found[1] + _part(found[2], table) + "\n" + found[3], page)


def _part(name: str, table: dict[str, Any]) -> str:
    if name in OTHERS:
        if name not in table:
            return NOT_MEASURED
        return f"{importlib.import_module(OTHERS[name]).table(table[name])}\n\n{_picture(name)}"
    writer, needs = WRITERS[name]
    return writer(table) if needs in table else NOT_MEASURED


def _picture(name: str) -> str:
    return f"![{name}](performance/{name}.svg)"


def _with(picture: str, writer: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    return lambda table: f"{writer(table)}\n\n{_picture(picture)}"


def machine_list(table: dict[str, Any]) -> str:
    """Processor, versions, commits, load."""
    about = table["machine"]
    measured = [
        pair for cell in table.get("cells", {}).values() for pair in cell.values() if isinstance(pair, dict)
    ] + [table[part] for part in OTHERS if part in table]
    loads = [entry["load"][0] for entry in measured if "load" in entry]
    lines = [
        f"* {about['processor']}, {about['cores']} cores, {about['memory_bytes'] / 2**30:.0f} GiB; "
        f"{', '.join(about['instruction_sets'])}; {about['system']}, Python {about['python']}",
        "* " + ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version),
        f"* measured at {', '.join(sorted({entry['commit'] for entry in measured if 'commit' in entry}))}",
    ]
    if loads:
        lines.append(f"* load average over a minute at the end of each measurement: {min(loads)} to {max(loads)}")
    return "\n".join(lines)


def gate_table(table: dict[str, Any]) -> str:
    """Return the gates of the run, and whether it is void."""
    gates = table["gate"]["gates"]
    rows = [
        [name, f"{gate['value']:.1e}", f"{gate['limit']:.0e}", "yes" if gate["passed"] else "**no**"]
        for name, gate in gates.items()
    ]
    void = "".join(f"\n\n**Void:** {reason}." for reason in table["void"])
    return tables.markdown(["against the plain oracle", "found", "limit", "holds"], rows) + void


def first_table(table: dict[str, Any]) -> str:
    """Return the shares of the limit: of these results, then of the other machines' that are committed."""
    others = (Results.read(path) for path in sorted(FOLDER.glob("*core.json")))
    machine = table["machine"]
    return tables.limits_first([table, *(other for other in others if _kind(other["machine"]) != _kind(machine))])


def _kind(about: dict[str, Any]) -> tuple[Any, ...]:
    return about["processor"], about["instruction_sets"], about["cores"]


WRITERS: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "first": (first_table, "cells"),
    "machine": (machine_list, "machine"),
    "gate": (gate_table, "gate"),
    "goals": (goals_table, "cells"),
    "cells": (_with("ratios", cells_table), "cells"),
    "phases": (_with("phases", tables.phases_table), "cells"),
    "efficiency": (tables.efficiency_table, "cells"),
    "tokens": (tables.tokens_table, "cells"),
    "limits": (tables.limits_table, "cells"),
}
"""The function that writes each part, and the section of the results that it needs."""


def main() -> int:
    """Rewrite the page and its pictures."""
    page = PAGE.read_text(encoding="utf-8")
    table = results_of(page)
    PAGE.write_text(filled(page, table), encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    if table.get("cells"):
        from bench.report.plots import plot_phases, plot_ratios

        plot_phases(table, FIGURES / "phases.svg")
        plot_ratios(table, FIGURES / "ratios.svg")
    for name, module in OTHERS.items():
        if name in table:
            importlib.import_module(module).plot(table[name], FIGURES / f"{name}.svg")
    print(f"{PAGE.relative_to(ROOT)} is written from the results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
