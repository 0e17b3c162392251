"""The metrics of TRL's PPO for one step, under its names.

Covered: what oncurve measures by the same formula, up to padding, over which TRL takes some of its means. Not covered:
`policy/approxkl_avg` and `val/ratio_var`, which oncurve has by no or another formula, and `eps`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from oncurve.types import Group

NAMES: Mapping[str, str] = {
    "policy/objective_loss": "loss/policy_avg",
    "policy/entropy": "policy/entropy_avg",
    "policy/ratio": "val/ratio",
    "critic/loss": "loss/value_avg",
    "critic/clip": "val/clipfrac_avg",
    "optim/learning_rate": "lr",
}
"""By oncurve's metric, the name there."""


def ppo_logs(
    metrics: Mapping[str, float], groups: Sequence[Group], episode: int, kl_coef: float, end: int | None
) -> dict[str, float | None]:
    """TRL's metrics of a step after which `episode` completions were sampled; `end` is the tokenizer's end token."""
    pairs = [(each, score) for group in groups for each, score in zip(group.completions, group.scores, strict=True)]
    scored = [(completion, score.reward) for completion, score in pairs if score.valid]
    made: dict[str, float | None] = {"episode": float(episode)}
    if scored:
        scores = math.fsum(reward for _, reward in scored) / len(scored)
        kl = metrics.get("policy/kl", 0.0) * sum(len(each.ids) for each, _ in scored) / len(scored)
        made |= {
            "objective/kl": kl,
            "objective/entropy": math.fsum(-each for one, _ in scored for each in one.logprobs) / len(scored),
            "objective/non_score_reward": -kl_coef * kl,
            "objective/scores": scores,
            "objective/rlhf_reward": scores - kl_coef * kl,
        }
        if "policy/kl" not in metrics:
            del made["objective/kl"]  # without a penalty there is no reference
    if all(key in metrics for key in ("policy/clip_low", "policy/clip_high")):
        made["policy/clipfrac_avg"] = metrics["policy/clip_low"] + metrics["policy/clip_high"]
    if end is not None:
        made["val/num_eos_tokens"] = float(sum(each.ids.count(end) for each, _ in pairs))
    return made | {name: metrics[key] for key, name in NAMES.items() if key in metrics}
