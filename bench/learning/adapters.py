"""LoRA at several ranks next to full fine-tuning, each at its own best learning rate, on two tasks.

    python -m bench.learning.adapters [--seeds 5] [--task arithmetic] [--jobs 1] [--model STORY_MODEL]
                                      [--out bench/results/adapters.json]

The reward at the end is the mean reward of the samples of the last quarter of the steps. For every arm each rate is
tried on a seed of its own; the best one then trains on the seeds that are compared. stories_keyword needs a small model
that writes stories, named by --model. Runs that the file holds already are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.learning.presets import RECIPE, common
from bench.learning.runs import PAGE, ROOT, filled, measured, read

__all__ = ["at_the_end", "best_rate", "table", "words_of"]

OUT = ROOT / "bench" / "results" / "adapters.json"
STORIES = ROOT / "src" / "oncurve" / "recipes" / "stories_keyword.toml"
RANKS = (0, 1, 4, 16)
"""0: full fine-tuning."""
RATES = {"arithmetic": (1e-4, 2.5e-4, 5e-4, 1e-3), "stories_keyword": (1e-4, 2e-4, 4e-4, 8e-4)}
"""The rates that are tried for full fine-tuning; for LoRA ten times as high."""
STEPS = {"arithmetic": 20, "stories_keyword": 15}
SEARCH_SEED = 100


def arm(task: str, rank: int, rate: float) -> str:
    """The name of an arm at a rate: task, rank, rate."""
    return f"{task} {rank} {rate:g}"


def rates(task: str, rank: int) -> tuple[float, ...]:
    """The rates that are tried for an arm."""
    return tuple(float(f"{rate * (10 if rank else 1):.3g}") for rate in RATES[task])


def words_of(task: str, rank: int, rate: float, seed: int, model: str | None) -> list[str]:
    """The settings of one run, over its recipe."""
    words = [f"lora.rank={rank}", f"learner.learning_rate={rate:g}"]
    if task == "arithmetic":
        return [*common(seed, STEPS[task]), *words]
    size = [
        "rollout.group_size=8",
        f"run.seed={seed}",
        f"run.steps={STEPS[task]}",
        "run.threads=1",
        "eval.every=0",
        "checkpoint.every=0",
    ]
    return [f"model.path={model}", *size, *words]


def at_the_end(result: dict[str, Any]) -> float:
    """The mean reward of the last quarter of the steps of a run."""
    rewards = result["reward_mean"]
    return statistics.fmean(rewards[-max(1, len(rewards) // 4) :])


def best_rate(found: dict[str, Any], task: str, rank: int) -> float:
    """The rate with the highest reward at the end on the search seed."""
    tried = {rate: found["runs"][arm(task, rank, rate)][str(SEARCH_SEED)] for rate in rates(task, rank)}
    return max(tried, key=lambda rate: at_the_end(tried[rate]))


def table(found: dict[str, Any]) -> str:
    """The table of the documentation: mean and range over seeds, and each rank's distance to full fine-tuning."""
    lines = ["| task | arm | rate | reward at the end: mean (range over seeds) | to full |", "|---|---|---|---|---|"]
    for task in RATES:
        full: float | None = None
        for rank in RANKS:
            if not all(str(SEARCH_SEED) in found["runs"].get(arm(task, rank, r), {}) for r in rates(task, rank)):
                continue
            rate = best_rate(found, task, rank)
            runs = {seed: run for seed, run in found["runs"][arm(task, rank, rate)].items() if seed != str(SEARCH_SEED)}
            if not runs:
                continue
            ends = [at_the_end(run) for run in runs.values()]
            mean = statistics.fmean(ends)
            full = mean if rank == 0 else full
            distance = "" if rank == 0 or full is None else f"{mean - full:+.3f}"
            name = f"LoRA, rank {rank}" if rank else "full fine-tuning"
            lines.append(
                f"| `{task}` | {name} | {rate:g} | {mean:.3f} ({min(ends):.3f} to {max(ends):.3f}) | {distance} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Search each arm's rate, train the seeds, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--task", choices=list(RATES), action="append", help="default: both")
    parser.add_argument("--model", help="a folder with a story model, for stories_keyword")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results in the file")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    tasks = given.task or list(RATES)
    if "stories_keyword" in tasks and not given.model:
        parser.error("stories_keyword needs --model, or choose --task arithmetic")
    found = read(given.out, {"steps": STEPS}, given.fresh)
    for task in tasks:
        recipe = RECIPE if task == "arithmetic" else STORIES
        for seeds in ([SEARCH_SEED], list(range(given.seeds))):
            chosen = {
                rank: rates(task, rank) if seeds == [SEARCH_SEED] else (best_rate(found, task, rank),) for rank in RANKS
            }
            wanted = {
                (arm(task, rank, rate), str(seed)): (recipe, words_of(task, rank, rate, seed, given.model))
                for seed in seeds
                for rank in RANKS
                for rate in chosen[rank]
            }
            measured(found, wanted, given.out, given.jobs, evaluated=False)
    sys.stdout.write(table(found) + "\n")
    if given.out == OUT:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), "adapters", table(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
