"""What do updates without a gradient cost? Training on a sparse form of the built-in task, with and without them.

    python -m bench.science.empty [--seeds 8] [--jobs 2] [--out bench/results/empty.json]
    python -m bench.science.page

Each run trains the shipped tiny model; only the learning rate, `learner.skip_empty_updates` and the seed differ. The
task is sparse because a completion has 24 tokens: few solutions end within them. Each group of 4 is an update of its
own, and most groups are constant. The result is the held-out greedy accuracy at the end, with 24 tokens, too. Runs that
are in the results file are not repeated.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench.science import study

__all__ = ["STUDY", "one"]


def _empty(method: str, runs: list[dict[str, Any]]) -> str:
    counts = [sum(run["curves"]["optim/updates_empty"]) for run in runs if run["method"] == method]
    return f"{statistics.fmean(counts) / (study.STEPS * GROUPS):.0%}"


GROUPS = study.SETTINGS["data"]["prompts_per_step"]

STUDY = study.Study(
    name="empty",
    sizes=(2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4),
    symbol="learning rate",
    axis="learner.learning_rate",
    methods={
        "step": {"learner": {"skip_empty_updates": False}},
        "skip": {"learner": {"skip_empty_updates": True}},
    },
    of_size=lambda rate: {
        "rollout": {"group_size": 4, "max_new_tokens": 24},
        "learner": {"learning_rate": rate, "minibatches": GROUPS},
    },
    kept=("reward/mean", "optim/updates_empty", "eval/accuracy"),
    columns={f"empty, {method}": lambda runs, method=method: _empty(method, runs) for method in ("step", "skip")},
    legend="empty updates",
)


def one(method: str, size: float, seed: int) -> dict[str, Any]:
    """`Study.one` of this study."""
    return STUDY.one(method, size, seed)


if __name__ == "__main__":
    study.main(STUDY, one, __doc__)
