"""TRL's metrics of a step and of an evaluation, under its names and by its definitions.

Covered: rewards, lengths and endings from the groups; loss, gradient, KL, entropy and clipping from oncurve's metrics.
Not covered: `clip_ratio/low_min` and `high_max` where some token is clipped, which are of single completions, and
`eval_loss` with a KL term or a bonus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oncurve.batching import collate
from oncurve.metrics import METRICS
from oncurve.run import Run
from oncurve.trainer import StepResult
from oncurve.types import Completion, Group, Score, TokenStats

LogLine = dict[str, float | None]

NAMES = {metric.name: metric.trl for metric in METRICS.values() if metric.trl and metric.prefix is None}
"""TRL's name of each of oncurve's metrics that TRL has."""

FROM_METRICS = ("policy/loss", "optim/grad_norm", "optim/learning_rate", "policy/entropy", "time/step")
CLIPS = ("policy/clip_low", "policy/clip_high")
CLOSE = 1e-8


def step_logs(result: StepResult, run: Run) -> LogLine:
    """Return TRL's metrics of one step, and what reward functions have logged by `log_metric`."""
    metrics, config, steered = result.metrics, run.config, run.trainer.state.entropy_coef
    wanted = (*FROM_METRICS, *(("policy/kl",) if config.kl.coef else ()), "policy/weight_clip", *CLIPS)
    logs: LogLine = {NAMES[key]: metrics[key] for key in wanted if key in metrics}
    if all(key in metrics for key in CLIPS):
        low, high = (metrics[key] for key in CLIPS)
        logs["clip_ratio/region_mean"] = low + high
        logs |= {"clip_ratio/low_min": 0.0} if not low else {}
        logs |= {"clip_ratio/high_max": 0.0} if not high else {}
    if config.regularizer.rewards_entropy and "policy/entropy" in metrics:
        bonus = metrics.get("policy/entropy_coef", config.entropy.coef) * metrics["policy/entropy"]
        logs["policy_loss"] = metrics["policy/loss"] + bonus
        logs["entropy_coef"] = config.entropy.coef if steered is None else steered
    logs |= group_logs(result.groups)
    for reward in run.rewards.components:
        begin = f"rewards/{reward.name}/"
        logs |= {key.removeprefix(begin): value for key, value in metrics.items() if key.startswith(begin)}
    return logs


def group_logs(groups: Sequence[Group]) -> LogLine:
    """Return TRL's metrics of completions with their scores; None where a reward applied to none of them."""
    completions = [completion for group in groups for completion in group.completions]
    scores = [score for group in groups for score in group.scores]
    logs: LogLine = dict(_lengths(completions))
    for name in dict.fromkeys(name for score in scores for name in score.parts):
        values = [value for score in scores if (value := score.parts.get(name)) is not None]
        logs[f"rewards/{name}/mean"], logs[f"rewards/{name}/std"] = _mean(values), _std(values)
    rewards = [score.reward for score in scores if score.valid]
    logs["reward"], logs["reward_std"] = _mean(rewards), _std(rewards)
    constant = [float(_is_constant(group.scores)) for group in groups for _ in group.completions]
    logs["frac_reward_zero_std"] = _mean(constant)
    return logs


def eval_loss(groups: Sequence[Group], run: Run) -> dict[str, float]:
    """Return the loss of an evaluation's completions at a ratio of 1.

    Nothing where it has a KL term or a bonus, or a group is of one completion, which has no advantage.
    """
    config = run.config
    alone = any(len(group.completions) < 2 for group in groups)
    if alone or config.kl.loss_coef or config.regularizer.rewards_entropy:
        return {}
    batch = collate(groups)
    batch = batch.having(old_logprobs=batch.rollout_logprobs)
    batch = batch.with_advantages(config.advantage(batch)).with_weights(config.loss_weights(batch))
    assert batch.rollout_logprobs is not None
    return {"loss": float(config.policy_term(TokenStats(batch.rollout_logprobs), batch).weighted(batch))}


def _lengths(completions: Sequence[Completion]) -> dict[str, float]:
    lengths = [float(len(completion.ids)) for completion in completions]
    ended = [float(len(completion.ids)) for completion in completions if completion.ended != "length"]
    cut = len(lengths) - len(ended)
    whole = ended or [0.0]
    return {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": cut / len(lengths),
        "completions/mean_terminated_length": sum(whole) / len(whole),
        "completions/min_terminated_length": min(whole),
        "completions/max_terminated_length": max(whole),
    }


def tokens_of(groups: Iterable[Group]) -> int:
    """Count the tokens of prompts and completions, which TRL adds up as `num_tokens`."""
    return sum(len(group.prompt.ids) + len(each.ids) for group in groups for each in group.completions)


def averaged(steps: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the means of several steps' metrics, over the steps that have a value; None where none has."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: _mean([value for step in steps if (value := step.get(name)) is not None]) for name in names}


def _is_constant(scores: Sequence[Score]) -> bool:
    deviation = _std([score.reward for score in scores if score.valid])
    return deviation is not None and deviation <= CLOSE


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, or None for a single value, as TRL's NaN is logged."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
