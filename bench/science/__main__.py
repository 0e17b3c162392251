"""`python -m bench.science all` makes the runs that the results lack, and writes docs/science.md from the results.

    python -m bench.science all|NAME... [--seeds 5] [--jobs 2] [--fresh]

Runs have one thread each, `--jobs` of them at a time. The results are bench/results/science.json, written after each
run, so that an interrupted command goes on. NAME is one of the experiments; `page` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import machine
from bench.learning.runs import filled
from bench.science import curriculum, demonstrations, deviation, lengths, peers, ratio, turns
from bench.science.runs import measured

EXPERIMENTS = {
    each.name: each
    for each in (
        deviation.EXPERIMENT,
        lengths.EXPERIMENT,
        ratio.EXPERIMENT,
        turns.EXPERIMENT,
        curriculum.EXPERIMENT,
        demonstrations.EXPERIMENT,
        peers.EXPERIMENT,
    )
}
ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "science.md", ROOT / "bench" / "results" / "science.json"


def write_page(found: dict[str, list[dict[str, Any]]]) -> None:
    """Write each experiment's part of the page."""
    page = PAGE.read_text(encoding="utf-8")
    for name, experiment in EXPERIMENTS.items():
        page = filled(page, name, experiment.page(found[name]) if found.get(name) else "Not measured.")
    PAGE.write_text(page, encoding="utf-8")


def main() -> int:
    """Make what is missing, keep it, write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.science", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=["all", "page", *EXPERIMENTS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"runs": {}}
    runs: dict[str, list[dict[str, Any]]] = known["runs"]

    names = list(EXPERIMENTS) if "all" in given.names else [name for name in given.names if name != "page"]
    for name in names if given.fresh else ():
        runs[name] = []
    todo = [
        (name, job)
        for name in names
        for job in EXPERIMENTS[name].jobs(given.seeds)
        if not any(job.items() <= run.items() for run in runs.get(name, []))
    ]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(measured, EXPERIMENTS[name].one, job): (name, job) for name, job in todo}
        for ended in as_completed(waiting):
            if ended.exception():
                pool.shutdown(wait=False, cancel_futures=True)
            (name, job), result = waiting[ended], ended.result()
            runs[name] = sorted([*runs.get(name, []), result], key=lambda run: str([run[key] for key in job]))
            text = json.dumps({"machine": machine.describe(), "runs": runs}, indent=0)
            RESULTS.write_text(text + "\n", encoding="utf-8")
            print(f"{name} {job}: {result['seconds']} s, load {result['load']}", flush=True)
    write_page(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
