"""Short training runs, each in a process of its own, and the file that keeps what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "filled", "measured", "read"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "learning.md"


def run_here(recipe: str, words: list[str]) -> dict[str, Any]:
    """Train in this process: rewards of the steps, seconds of training; greedy correctness before and after."""
    from oncurve.config import load_config
    from oncurve.run.assembly import assemble

    config, base = load_config(recipe, words)
    rewards: list[float] = []

    def keep(result: Any) -> None:
        rewards.append(round(result.metrics["reward/mean"], 6))

    with assemble(config, base) as run:
        found: dict[str, Any] = {"reward_mean": rewards}
        found["before"] = [int(right) for right in run.evaluate().greedy_correct]
        begun, used = time.perf_counter(), time.process_time()
        run.train(keep)
        found["seconds"] = round(time.perf_counter() - begun, 2)
        found["processor_seconds"] = round(time.process_time() - used, 2)
        found["after"] = [int(right) for right in run.evaluate().greedy_correct]
    return found


def trained(recipe: Path, words: list[str]) -> dict[str, Any]:
    """`run_here` in a process of its own. Raises RuntimeError with the end of its messages where it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.learning.runs", json.dumps([str(recipe), words])],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def read(out: Path, size: Mapping[str, Any], fresh: bool = False) -> dict[str, Any]:
    """What the file holds of this size: `{"size": ..., "runs": {name: {seed: result}}}`; else an empty one."""
    kept = json.loads(out.read_text(encoding="utf-8")) if out.is_file() and not fresh else {}
    return kept if kept.get("size") == size else {"size": dict(size), "runs": {}}


def measured(
    found: dict[str, Any],
    wanted: Mapping[tuple[str, str], tuple[Path, list[str]]],
    out: Path,
    jobs: int,
) -> None:
    """Add the runs of `wanted` ((name, seed) to recipe and settings) that `found` lacks; written after each."""

    def measure(one: tuple[str, str]) -> None:
        name, seed = one
        result = trained(*wanted[one])
        found["runs"].setdefault(name, {})[seed] = result
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, sort_keys=True) + "\n", encoding="utf-8")
        sys.stderr.write(f"{name} seed {seed}: {result['seconds']} s\n")

    missing = [(name, seed) for name, seed in wanted if seed not in found["runs"].get(name, {})]
    with ThreadPoolExecutor(jobs) as lanes:
        list(lanes.map(measure, missing))


def filled(page: str, part: str, table: str) -> str:
    """The page with `table` between the marks of `part`."""
    begin, end = f"<!-- begin {part} -->\n", f"<!-- end {part} -->"
    before, rest = page.split(begin)
    return f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_here(*json.loads(sys.argv[1]))) + "\n")
