"""Notes on settings that look like a mistake, and the facts of a run that they and the plan are about."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve.advantages import needs_of, reads_rewards
from oncurve.components import kind_of
from oncurve.config.sections import RunConfig
from oncurve.evaluate import NO_VERIFIER
from oncurve.learner import warmup_of
from oncurve.losses import (
    OBJECTIVE_KINDS,
    corrects,
    corrects_for_sampler,
    expected_aggregation,
    grows_with_batch,
    has_importance_ratio,
    objective_note,
)
from oncurve.rewards import verifier_of

FULL_RATE = 2e-6
"""Learning rates up to this are those of full fine-tuning; an adapter takes about ten times as much."""

TINY = 10_000_000
"""Parameters below which such a rate is too low: docs/learning-rates.md measures models of up to a million."""


@dataclass(frozen=True)
class AdapterFacts:
    """The adapter of a loaded model. Example: `AdapterFacts(16, 32.0, 168, 8_798_208, 17_596_416)`.

    layers        that it is on
    parameters    that are trained
    nbytes        of a frozen copy of it
    """

    rank: int
    alpha: float
    layers: int
    parameters: int
    nbytes: int


@dataclass(frozen=True)
class RunFacts:
    """Facts of the loaded data and model; None: not loaded yet. Example: `RunFacts(rows=7473, device="cpu")`.

    rows, eval_rows, dropped   training prompts, held-out prompts, prompts left out as too long
    distinct, eval_distinct    how many of the former two are different
    truncated                  prompts cut to their last tokens, as too long
    parameters                 of the model
    reference_bytes            what the frozen reference takes
    reference_given            whether it is a model of its own, not a copy of the policy
    teacher_bytes              what a distillation's frozen teacher takes
    kept                       whether the run has a directory
    device, path_reason        where the model runs; which path it takes and why
    precision                  what it computes in, and why
    adapter                    what is trained instead of the model's weights
    """

    rows: int | None = None
    eval_rows: int | None = None
    distinct: int | None = None
    eval_distinct: int | None = None
    dropped: int = 0
    truncated: int = 0
    parameters: int | None = None
    reference_bytes: int | None = None
    reference_given: bool = False
    teacher_bytes: int | None = None
    kept: bool = True
    device: str | None = None
    path_reason: str | None = None
    precision: str | None = None
    adapter: AdapterFacts | None = None


Conditions = Mapping[str, Callable[[RunConfig, RunFacts], bool]]

DATA_NOTES: Conditions = {
    "prompts_repeat": lambda c, f: f.rows is not None and f.distinct is not None and f.distinct * 2 < f.rows,
    "one_held_out": lambda c, f: bool(c.eval.every) and f.eval_distinct == 1,
}
"""The notes on the data alone: where each holds."""

NOTES: Conditions = {
    **DATA_NOTES,
    "rate_high": lambda c, f: c.learner.learning_rate > 1e-2,
    "adapter_rate_low": lambda c, f: c.lora.adapted and 0 < c.learner.learning_rate <= FULL_RATE,
    "tiny_rate_low": lambda c, f: (
        not c.lora.adapted and 0 < c.learner.learning_rate <= FULL_RATE and (f.parameters or TINY) < TINY
    ),
    "rate_0": lambda c, f: c.learner.learning_rate == 0,
    "no_reward_counts": lambda c, f: (
        bool(c.rewards) and reads_rewards(c.advantage) and not any(r.weight for r in c.rewards)
    ),
    "warms_up_to_the_end": lambda c, f: 0 < _policy_updates(c) <= c.learner.warmup_steps,
    "estimator": lambda c, f: c.kl.loss_coef > 0 and c.kl.chosen.note is not None,
    "updates_uncorrected": lambda c, f: not has_importance_ratio(c.objective) and c.updates_per_step > 1,
    "lag_limits_the_ratio": lambda c, f: _older_uncorrected(c) and has_importance_ratio(c.objective),
    "lag_uncorrected": lambda c, f: _older_uncorrected(c) and not has_importance_ratio(c.objective),
    "surplus_uncorrected": lambda c, f: c.filter.keeps_surplus and not has_importance_ratio(c.objective),
    "filter_leaves_out_lessons": lambda c, f: (
        c.filter.dynamic_sampling and _learns_from_constant_groups(needs_of(c.advantage))
    ),
    "objective_says": lambda c, f: objective_note(c.objective) is not None,
    "other_aggregation": lambda c, f: expected_aggregation(c.objective) not in (None, c.aggregation_kind),
    "gradient_grows": lambda c, f: grows_with_batch(c.aggregation),
    "apart_grows": lambda c, f: grows_with_batch(c.apart_weights) and not grows_with_batch(c.aggregation),
    "schedule_ends_early": lambda c, f: (
        c.learner.target_kl is not None and c.learner.schedule != "constant" and c.updates_per_step > 1
    ),
    "completions_long": lambda c, f: c.rollout.max_new_tokens > 32768,
    "temperature_high": lambda c, f: c.rollout.temperature > 2,
    "prompts_twice_in_a_step": lambda c, f: f.rows is not None and c.data.prompts_per_step > f.rows,
    "many_passes": lambda c, f: c.learner.ppo_epochs > 10,
    "entropy_lowered": lambda c, f: c.entropy.coef < 0,
    "kl_0": lambda c, f: (
        c.reference.every == 1 and c.reference.mixup_alpha == 1 and c.updates_per_step == 1 and c.kl.coef > 0
    ),
    "reference_never_moves": lambda c, f: c.reference.every >= c.run.steps,
    "evaluated_at_the_end": lambda c, f: c.eval.every > c.run.steps,
    "no_verifier": lambda c, f: (
        bool(c.eval.every) and bool(c.rewards) and verifier_of(c.rewards, c.eval.verifier) is None
    ),
    "policy_never_trained": lambda c, f: _policy_updates(c) <= 0,
    "idle_workers": lambda c, f: c.cluster.facts.idle_workers(c.data.prompts_per_step, c.rollout.group_size) > 0,
}
"""All notes, in the order of the plan: where each holds."""

WORDS: Mapping[str, Callable[[RunConfig, RunFacts], object]] = {
    "objective": lambda c, f: kind_of(c.objective, OBJECTIVE_KINDS),
    "objective_note": lambda c, f: objective_note(c.objective),
    "expected_aggregation": lambda c, f: expected_aggregation(c.objective),
    "updates": lambda c, f: c.run.steps * c.updates_per_step,
    "policy_updates": lambda c, f: _policy_updates(c),
    "critic_warmup": lambda c, f: warmup_of(c.critic),
    "idle_workers": lambda c, f: c.cluster.facts.idle_workers(c.data.prompts_per_step, c.rollout.group_size),
    "no_verifier": lambda c, f: NO_VERIFIER,
}
"""What stands in the braces of the notes, next to `c` and `f`."""


class Filling(dict[str, Any]):
    """The words for the braces of a sentence; a word is made where a sentence has it."""

    def __missing__(self, name: str) -> object:
        return WORDS[name](self["c"], self["f"])


_SENTENCES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def notes_on(config: RunConfig, facts: RunFacts, notes: Conditions = NOTES) -> list[str]:
    """Return the sentences of the notes that hold."""
    filling = Filling(c=config, f=facts)
    return [_SENTENCES[name].format_map(filling) for name, holds in notes.items() if holds(config, facts)]


def _policy_updates(config: RunConfig) -> int:
    """Return the updates of the run, without those in which a critic alone is trained."""
    return config.run.steps * config.updates_per_step - warmup_of(config.critic)


def _older_uncorrected(config: RunConfig) -> bool:
    """Return whether older weights sample and no weight corrects for them."""
    return config.cluster.facts.lag > 0 and not (corrects(config.correction) or corrects_for_sampler(config.objective))


def _learns_from_constant_groups(needs: frozenset[str]) -> bool:
    """Return whether an advantage with these needs is not 0 where all outcomes of a group are the same."""
    return "siblings" not in needs or bool(needs & {"values", "steps", "components"})
