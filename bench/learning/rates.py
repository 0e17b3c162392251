"""Which learning rates train: several models, tasks and rates, a few seeds; how far a step moves the policy.

    python -m bench.learning.rates [--seeds 3] [--only "arithmetic 0.36M"] [--data TEST_DATA] [--out FILE]
    python -m bench.learning.rates_page

Every run has a constant rate without warm-up; only model, rate and seed differ. The step's KL, KL(π_old || π_θ) in nats
per token, is measured by a second forward pass over the step's batch after its update. The stories need the models of
the test data, by default those of ONCURVE_TEST_DATA. Runs that the file holds already are not repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.learning.adapters import STORIES
from bench.learning.presets import RECIPE
from bench.learning.runs import ROOT, STEP_KL, measured, read

__all__ = ["CASES", "CURVES", "OUT", "Case", "words_of"]

OUT = ROOT / "bench" / "results" / "rates.json"
GRID = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
CURVES = (STEP_KL, "policy/kl", "policy/kl_coef", "policy/entropy", "optim/grad_norm", "optim/learning_rate")


@dataclass(frozen=True)
class Case:
    """A task with a model, and the rates that are tried.

    steps     of a run     story    the folder of a model in the test data, for stories_keyword; "": the built-in task
    kl_coef   None: the recipe's
    """

    rates: tuple[float, ...]
    steps: int
    story: str = ""
    kl_coef: float | None = None


CASES = {
    "arithmetic 0.36M": Case(GRID[1:7], 44),
    "stories 0.26M": Case(GRID[3:], 12, story="stories260k"),
    "stories 0.94M": Case(GRID[:5], 12, story="babyllama105"),
    "stories 0.26M, weak KL": Case(GRID[4:7], 12, story="stories260k", kl_coef=0.001),
}


def words_of(case: Case, rate: float, seed: int, data: Path | None) -> list[str]:
    """The settings of one run, over its recipe."""
    words = [
        f"learner.learning_rate={rate:g}",
        f"run.seed={seed}",
        f"run.steps={case.steps}",
        "run.threads=1",
        "model.dtype=float32",
        "rollout.group_size=8",
        "learner.schedule=constant",
        "learner.warmup_steps=0",
        "eval.every=0",
        "checkpoint.every=0",
    ]
    if case.kl_coef is not None:
        words.append(f"kl.coef={case.kl_coef:g}")
    return [*words, f"model.path={data}/models/{case.story}" if case.story else "data.prompts_per_step=16"]


def main() -> int:
    """Train what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=list(CASES), action="append", help="default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("ONCURVE_TEST_DATA"), help="the test data")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results in the file")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    names = given.only or list(CASES)
    if any(CASES[name].story for name in names) and given.data is None:
        parser.error("the stories need --data or ONCURVE_TEST_DATA, or choose cases by --only")
    size = {name: case.steps for name, case in CASES.items()}
    found = read(given.out, size, given.fresh)
    for seed in range(given.seeds):
        for name in names:
            case, recipe = CASES[name], STORIES if CASES[name].story else RECIPE
            words = {rate: words_of(case, rate, seed, given.data and given.data.resolve()) for rate in case.rates}
            wanted = {(f"{name} {rate:g}", str(seed)): (recipe, words[rate]) for rate in case.rates}
            measured(found, wanted, given.out, given.jobs, evaluated=False, curves=CURVES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
