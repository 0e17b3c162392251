"""`python -m bench PART` measures, keeps and prints. `make bench` and `make bench-quick` call it."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from bench.compare import cells, gate
from bench.results import Results, default_path
from bench.systems.process import BenchError

__all__ = ["PARTS", "main", "parse"]

PARTS: dict[str, str] = {
    "cells": "bench.compare.cells",
    "growth": "bench.growth.measure",
    "advantages": "bench.compare.group_advantages",
    "learning": "bench.learning.measure",
}
"""The parts in the order of a whole run. All but cells have `run(quick) -> dict`, `table(dict)`, `plot(dict, path)`."""

NEEDS = ("torch", "transformers", "trl", "rlox", "datasets", "oncurve")


def parse(words: list[str]) -> argparse.Namespace:
    """Return the command line. Exits with code 2 for an unknown part."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Compare oncurve with TRL and rlox on this machine."
    )
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="the parts to measure (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="under 8 minutes: 6.5M and 494M against TRL's best setting"
    )
    parser.add_argument("--cell", help="only cells whose names begin with CELL: 6.5M, '494M fixed'")
    parser.add_argument("--results", type=Path, help="the results file (default: named after this machine)")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results in the file")
    chosen = parser.parse_args(words)
    chosen.part = chosen.part or (["cells"] if chosen.quick else list(PARTS))
    return chosen


def main(words: list[str] | None = None) -> int:
    """Run the parts. Exit code 1 where a correctness gate fails, 2 where a part could not run."""
    begun = time.monotonic()
    chosen = parse(sys.argv[1:] if words is None else words)
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        print(
            f"bench: {', '.join(missing)} is not installed; run `make bench`, which sets up the environment",
            file=sys.stderr,
        )
        return 2
    results = Results(chosen.results or default_path(chosen.quick), chosen.quick, chosen.fresh)
    failed = False
    for part in chosen.part:
        print(f"== {part}", flush=True)
        try:
            _run_part(part, results, chosen, begun)
        except (BenchError, RuntimeError) as error:  # the other parts are measured all the same
            print(f"bench: {part}: {error}", file=sys.stderr)
            failed = True
    print(f"The results are in {results.path} ({time.monotonic() - begun:.0f} s)")
    for reason in results.table["void"]:
        print(f"VOID: {reason}", file=sys.stderr)
    return 1 if results.table["void"] else 2 if failed else 0


def _run_part(part: str, results: Results, chosen: argparse.Namespace, begun: float) -> None:
    if part != "cells":
        if not results.has(part):
            module = importlib.import_module(PARTS[part])
            found = module.run(quick=chosen.quick)
            results.put(found, part)
            print(module.table(found))
        return
    if not results.has("gate"):
        results.put(gate.measure(threads=2), "gate")
    for name, found in results.table["gate"]["gates"].items():
        print(f"gate: {name} {found['value']:.2e} (limit {found['limit']:.0e})", flush=True)
    cells.run(results, chosen.quick, chosen.cell, begun)
    from bench.report.document import cells_table, first_table

    print(first_table(results.table) + "\n\n" + cells_table(results.table))


if __name__ == "__main__":
    sys.exit(main())
