"""The speed of a run without `[cluster]`, now and at an earlier commit: `python -m bench.cluster.alone BEFORE`.

Each code has a folder of its own (`git worktree`) and runs in its own processes, in turns, one thread: a step to warm
up, then four steps of the 6.5M shape with 4 prompts, 8 completions each of 64 tokens. Processor seconds of a step are
compared in pairs, because the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import machine
from bench.models import CACHE, model_path
from bench.timing import ratio_interval

ROOT = Path(__file__).parents[2]
STEPS = 4
CODE = f"""
import time, torch, oncurve
torch.set_num_threads(1)
from bench.cases import Case
from bench.systems.ours import build_run
run = build_run(Case("oncurve", "6.5M", 4, 8, 64, threads=1))
took = []
for _ in range({STEPS} + 1):
    began = time.process_time()
    run.trainer.step()
    took.append(time.process_time() - began)
print(oncurve.__file__, *took[1:])
"""


def steps_of(folder: Path) -> list[float]:
    """Processor seconds of each step by the code in `folder`."""
    path = f"{folder / 'src'}{os.pathsep}{folder}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    source, *took = done.stdout.splitlines()[-1].split()
    if not Path(source).is_relative_to(folder):
        raise SystemExit(f"the code that ran is {source}, not that of {folder}")
    return [float(value) for value in took]


def main() -> None:
    """Compare, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", help="a commit")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench/results/cluster_alone.json"))
    given = parser.parse_args()
    model_path("6.5M")
    found: dict[str, list[float]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory(prefix="oncurve-alone-") as folder:
        trees = {"before": Path(folder).resolve() / "before", "now": Path(folder).resolve() / "now"}
        try:
            for name, tree in trees.items():
                commit = given.before if name == "before" else "HEAD"
                command = ["git", "worktree", "add", "--detach", "--quiet", str(tree), commit]
                subprocess.run(command, cwd=ROOT, check=True)
                shutil.copytree(
                    CACHE, tree / "bench" / ".cache"
                )  # one tokenizer: it is trained on the code's own pages
                steps_of(tree)  # compiles
            for number in range(given.repeats):
                for name in list(trees) if number % 2 == 0 else reversed(list(trees)):
                    took = steps_of(trees[name])
                    found[name] += took
                    print(f"  {name}: " + ", ".join(f"{value:.3f}" for value in took), flush=True)
        finally:
            for tree in trees.values():
                subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=False)
    ratio = ratio_interval(found["now"], found["before"])
    about = {"before": given.before, "machine": machine.describe(), "load": machine.load()}
    given.out.write_text(json.dumps({"ratio": ratio, "steps": found, **about}, indent=1) + "\n", encoding="utf-8")
    print(f"now / before: {ratio[0]:.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})")


if __name__ == "__main__":
    main()
