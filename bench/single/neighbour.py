"""A training step while another process keeps a processor busy: quiet, busy from the same session, from another one.

    python -m bench.single.neighbour [--model 38M] [--steps 3] [--systems oncurve,trl-bf16] [--out FILE]

The kernel shares processors out by session first (autogroup): a neighbour from another session takes more of them. Each
system runs in a process of its own, one after another: a step to warm up, then `--steps` steps in each condition, or as
many as `--seconds` allow, at least one. A step is left out where anything but the worker and its neighbour used more
than a fifth of a processor. Steps are added to those of FILE. TRL is measured where it is installed (`make bench`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import machine
from bench.cases import Case
from bench.report.tables import markdown
from bench.systems.process import Worker
from oncurve.machine.contention import foreign, read

__all__ = ["CONDITIONS", "SYSTEMS", "main", "measure", "neighbour", "table"]

SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"
DISTURBED = 0.2  # processors
CONDITIONS = ("quiet", "busy, same session", "busy, another session")
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "oncurve": ("oncurve", {}),
    "oncurve-spinning": ("oncurve, its threads wait as libgomp has it", {"settings": (("watch", False),)}),
    "oncurve-1": ("oncurve, run.threads=1", {"threads": 1}),
    "trl-bf16": ("TRL, bf16 weights", {}),
}
"""The systems by key: the name in the table, and what differs in the case."""


def case_of(key: str, model: str) -> Case:
    """The case of a system: two prompts, eight completions each, of 64 tokens."""
    system = "oncurve" if key.startswith("oncurve") else key
    return replace(Case(system, model, 2, 8, 64), **SYSTEMS[key][1])


@contextmanager
def neighbour(condition: str) -> Iterator[int | None]:
    """The id of a process that keeps one processor busy, in this session or in one of its own; None where quiet."""
    if condition == "quiet":
        yield None
        return
    other = condition == "busy, another session"
    process = subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=other)
    try:
        time.sleep(1.0)  # by then the supervision has seen it
        yield process.pid
    finally:
        process.kill()
        process.wait()


def measure(case: Case, steps: int, seconds: float) -> dict[str, Any]:
    """Each step's seconds in each condition, and the processors that other processes used meanwhile."""
    found: dict[str, Any] = {}
    with Worker(case) as worker:
        worker.step()
        for condition in CONDITIONS:
            with neighbour(condition) as busy:
                each: list[dict[str, float]] = []
                began = time.monotonic()
                while len(each) < steps and (not each or time.monotonic() - began < seconds):
                    before, known = read(), worker.cpu_seconds() + cpu_seconds(busy)
                    took = worker.step()["seconds"]
                    after, used = read(), worker.cpu_seconds() + cpu_seconds(busy) - known
                    others = max(0.0, foreign(before, after) - used / took) if before and after else 0.0
                    each.append({"seconds": took, "others": others})
            found[condition] = each
            print(
                f"  {condition}: " + ", ".join("{seconds:.2f} s ({others:.2f})".format(**s) for s in each), flush=True
            )
    return found


def cpu_seconds(process: int | None) -> float:
    """Processor time that a process has used (Linux)."""
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def undisturbed(each: list[dict[str, float]]) -> tuple[float, bool]:
    """The median of the undisturbed steps and True, else the least disturbed step and False."""
    calm = [step["seconds"] for step in each if step["others"] <= DISTURBED]
    if calm:
        return statistics.median(calm), True
    return min(each, key=lambda step: step["others"])["seconds"], False


def table(results: dict[str, dict[str, Any]]) -> str:
    """Seconds per step, and their multiple of the quiet ones; a star where every step was disturbed."""
    rows = []
    for key, found in results.items():
        quiet = undisturbed(found["quiet"])[0]
        row = [SYSTEMS[key][0]]
        for condition in CONDITIONS:
            took, calm = undisturbed(found[condition])
            times = "" if condition == "quiet" else f" ({took / quiet:.2f})"
            row.append(f"{took:.2f} s{times}{'' if calm else '*'}")
        rows.append(row)
    return markdown(["", *CONDITIONS], rows)


def main() -> int:
    """Measure the systems, print the table, write the figures. The steps already in the file are kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="38M")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="no step of a condition begins later than this")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--out", type=Path, default=Path("bench/results/neighbour.json"))
    given = parser.parse_args()
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    results = kept.get("results", {}) if kept.get("model") == given.model else {}
    for key in given.systems.split(","):
        if key not in SYSTEMS:
            parser.error(f"--systems: there is no {key!r}; there are: {', '.join(SYSTEMS)}")
        if key.startswith("trl") and find_spec("trl") is None:
            print(f"{key}: not measured, trl is not installed", flush=True)
            continue
        print(f"{key} ...", flush=True)
        found = measure(case_of(key, given.model), given.steps, given.seconds)
        results[key] = {name: results.get(key, {}).get(name, []) + found[name] for name in CONDITIONS}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        about = {"model": given.model, "machine": machine.describe(), "results": results}
        given.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
