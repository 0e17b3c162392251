"""The weight that the division by a group's standard deviation gives to a pass rate: exactly, sampled, and in training.

With a right-or-wrong reward, pass rate p and G completions, the mean of advantage times score is f(p) ∇p. The scores of
right and wrong completions have the means ∇p/p and -∇p/(1-p). With m the share of right ones in a group,

    f(p) = E[m (1-m) / s] / (p (1-p))      s = 1 without the division, sqrt(m (1-m) G/(G-1)) with it, m ~ Bin(G, p)/G
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from bench.science.runs import Experiment, problems, right, said, train, warm_start

__all__ = ["EXPERIMENT", "factor"]

SCALES, RATES, GROUP, STEPS, PROMPTS = ("group", "none"), (0.02, 0.1, 0.3, 0.5, 0.9), 8, 40, 16
SAMPLED, COUNTS = 4000, (2, 3)


def factor(rate: float, scale: str, group: int = GROUP) -> float:
    """Return f(p), exactly."""
    total = 0.0
    for k in range(1, group):
        share = k / group
        spread = math.sqrt(share * (1 - share) * group / (group - 1)) if scale == "group" else 1.0
        total += math.comb(group, k) * rate**k * (1 - rate) ** (group - k) * share * (1 - share) / spread
    return total / (rate * (1 - rate))


def _jobs(seeds: int) -> list[dict[str, Any]]:
    sampled = [{"kind": "sampled", "scale": scale, "rate": rate, "seed": 0} for scale in SCALES for rate in RATES]
    return sampled + [
        {"kind": "trained", "scale": scale, "rate": 0, "seed": seed} for seed in range(seeds) for scale in SCALES
    ]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    return _sampled(job["rate"], job["scale"]) if job["kind"] == "sampled" else _trained(job["scale"], job["seed"])


def _sampled(rate: float, scale: Any) -> dict[str, Any]:
    """Return f(p) as the mean over groups, by the package's own advantages: each group's, in batches of one group."""
    import torch

    from oncurve.advantages.group import group_advantages

    rewards = (torch.rand(SAMPLED, GROUP, generator=torch.Generator().manual_seed(0)) < rate).double()
    groups = torch.arange(SAMPLED).repeat_interleave(GROUP)
    valid = torch.ones(SAMPLED * GROUP, dtype=torch.bool)
    found = group_advantages(rewards.flatten(), valid, groups, scale).view(SAMPLED, GROUP)
    values = (found * torch.where(rewards > 0, 1 / rate, -1 / (1 - rate))).mean(1)
    return {"factor": float(values.mean()), "half": 1.96 * float(values.std()) / math.sqrt(SAMPLED)}


def _trained(scale: str, seed: int) -> dict[str, Any]:
    sampled: list[tuple[int, float]] = []

    def reward(completion: str, numbers: list[int], target: int) -> float:
        sampled.append((len(numbers), right(completion, numbers, target)))
        return sampled[-1][1]

    settings = {"advantage.scale": scale, "eval.every": STEPS, "eval.at_start": False}
    made = train(
        warm_start(300, COUNTS), problems(0, 5000, COUNTS), seed, steps=STEPS, reward=reward, settings=settings
    )
    last = sampled[: STEPS * PROMPTS * GROUP][-STEPS * PROMPTS * GROUP // 4 :]
    shares = {f"of {count}": statistics.fmean([r for n, r in last if n == count]) for count in COUNTS}
    return made | shares


def _page(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| pass rate p | f(p) divided, closed form | sampled | not divided, closed form | sampled |",
        "|--:|--:|--:|--:|--:|",
    ]
    found = {(run["scale"], run["rate"]): run for run in runs if run["kind"] == "sampled"}
    for rate in RATES:
        cells = []
        for scale in SCALES:
            one = found[scale, rate]
            cells += [f"{factor(rate, scale):.3f}", f"{one['factor']:.3f} ± {one['half']:.3f}"]
        lines.append(f"| {rate} | " + " | ".join(cells) + " |")
    lines += ["", "| advantage.scale | seeds | right of two numbers | right of three numbers | held-out accuracy |"]
    lines.append("|---|--:|--:|--:|--:|")
    for scale in SCALES:
        own = [run for run in runs if run["kind"] == "trained" and run["scale"] == scale]
        if own:
            cells = [said([run[key] for run in own]) for key in ("of 2", "of 3")]
            ends = said([run["curve"][-1][1] for run in own])
            lines.append(f"| `{scale}` | {len(own)} | " + " | ".join(cells) + f" | {ends} |")
    return "\n".join(lines)


EXPERIMENT = Experiment("deviation", _jobs, _one, _page)
