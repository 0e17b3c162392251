"""The demo's figures over ten seeds, each in a fresh process, as a table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def demo(seed: int) -> dict[str, Any]:
    """Return the figures of one run, in its own process and folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "oncurve", "demo", "--seed", str(seed), "--out", f"{folder}/run", "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"seed": seed, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Run the demo once per seed, `--jobs` runs at a time, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, of one thread each")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    arguments = parser.parse_args()
    rows = []
    print("seed  before   after   gain  (paired, 95 % interval)  steps  seconds  peak MB", flush=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(demo, range(arguments.seeds)):
            rows.append(row)
            low, high = row["gain_interval"]
            print(
                f"{row['seed']:4}  {row['accuracy_before']:6.1%}  {row['accuracy_after']:6.1%}  "
                f"{100 * row['gain']:+5.1f}  ({100 * low:+5.1f} to {100 * high:+5.1f})         {row['steps']:5}  "
                f"{row['seconds']:7.1f}  {row['peak_memory_bytes'] / 1e6:7.0f}",
                flush=True,
            )
    reached = sum(row["gain"] >= 0.40 for row in rows)
    print(f"{reached} of {len(rows)} seeds gained at least 40 points")
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
