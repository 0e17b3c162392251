"""Notes on settings that look like a mistake, and the facts of a run that they and the plan are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oncurve.advantages import needs_of, reads_rewards
from oncurve.components import kind_of
from oncurve.config.sections import RunConfig
from oncurve.config.sentences.adapter import AdapterFacts, trained_too_slowly
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


@dataclass(frozen=True)
class RunFacts:
    """Facts of the loaded data and model; None: not loaded yet. Example: `RunFacts(rows=7473, device="cpu")`.

    rows, eval_rows, dropped   training prompts, held-out prompts, prompts left out as too long
    distinct, eval_distinct    how many of the former two are different
    truncated                  prompts of which the last tokens are kept, as too long
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


@dataclass(frozen=True)
class Note:
    """Settings that are allowed and rarely meant: where the note `holds`, `text` says what follows from them."""

    holds: Callable[[RunConfig, RunFacts], bool]
    text: Callable[[RunConfig, RunFacts], str]


def _objective(config: RunConfig) -> str:
    return kind_of(config.objective, OBJECTIVE_KINDS)


def _policy_updates(config: RunConfig) -> int:
    """Updates of the run, without those in which a critic alone is trained."""
    return config.run.steps * config.updates_per_step - warmup_of(config.critic)


def _learns_from_constant_groups(needs: frozenset[str]) -> bool:
    """Whether an advantage with these needs is not 0 where all outcomes of a group are the same."""
    return "siblings" not in needs or bool(needs & {"values", "steps", "components"})


DATA_NOTES = (
    Note(
        lambda c, f: f.rows is not None and f.distinct is not None and f.distinct * 2 < f.rows,
        lambda c, f: (
            f"different prompts among the {f.rows:,} to train on: {f.distinct:,}; the others repeat them: look "
            "whether the right column is the prompt, and whether the rows were written more than once"
        ),
    ),
    Note(
        lambda c, f: bool(c.eval.every) and f.eval_distinct == 1,
        lambda c, f: (
            "the evaluation is on one prompt only, so its accuracy is that of one task; hold out more rows, or raise "
            "eval.limit"
        ),
    ),
)

NOTES: tuple[Note, ...] = (
    *DATA_NOTES,
    Note(
        lambda c, f: c.learner.learning_rate > 1e-2,
        lambda c, f: (
            f"learner.learning_rate = {c.learner.learning_rate:g} is above 0.01; policies are trained at 1e-6 to 1e-4"
        ),
    ),
    Note(
        lambda c, f: trained_too_slowly(c),
        lambda c, f: (
            f"learner.learning_rate = {c.learner.learning_rate:g} is a rate of full fine-tuning; an adapter takes "
            "about ten times as much, like learner.learning_rate=1e-5"
        ),
    ),
    Note(lambda c, f: c.learner.learning_rate == 0, lambda c, f: "learner.learning_rate = 0: nothing will be learned"),
    Note(
        lambda c, f: bool(c.rewards) and reads_rewards(c.advantage) and not any(r.weight for r in c.rewards),
        lambda c, f: "every reward has weight 0: all rewards are 0, and nothing will be learned from them",
    ),
    Note(
        lambda c, f: 0 < _policy_updates(c) <= c.learner.warmup_steps,
        lambda c, f: (
            f"learner.warmup_steps = {c.learner.warmup_steps} is no less than the policy's "
            f"{_policy_updates(c)} updates: the learning rate never reaches its peak"
        ),
    ),
    Note(
        lambda c, f: c.kl.loss_coef > 0 and c.kl.chosen.note is not None,
        lambda c, f: f'kl.estimator = "{c.kl.estimator}" {c.kl.chosen.note}',
    ),
    Note(
        lambda c, f: not has_importance_ratio(c.objective) and c.updates_per_step > 1,
        lambda c, f: (
            f'objective "{_objective(c)}" has no importance ratio: of {c.updates_per_step} updates per rollout only '
            "the first is on-policy, and nothing corrects the others; set learner.ppo_epochs and learner.minibatches "
            'to 1, or objective.kind to "clipped"'
        ),
    ),
    Note(
        lambda c, f: c.cluster.facts.lag > 0 and not (corrects(c.correction) or corrects_for_sampler(c.objective)),
        lambda c, f: (
            f"cluster.lag = {c.cluster.facts.lag}: the older weights that sample are the old policy of the objective's "
            'ratio, which limits how far updates go from them; correction.kind="truncated" separates the two (the '
            "decoupled objective); docs/science.md compares them"
            if has_importance_ratio(c.objective)
            else f"cluster.lag = {c.cluster.facts.lag}: nothing corrects for the older weights that sample; set "
            'correction.kind="truncated", or objective.kind="clipped", whose ratio does'
        ),
    ),
    Note(
        lambda c, f: c.filter.keeps_surplus and not has_importance_ratio(c.objective),
        lambda c, f: (
            f'objective "{_objective(c)}" has no importance ratio: nothing corrects the groups that '
            "filter.dynamic_sampling keeps from the step before, which the policy of that step sampled"
        ),
    ),
    Note(
        lambda c, f: c.filter.dynamic_sampling and _learns_from_constant_groups(needs_of(c.advantage)),
        lambda c, f: (
            "filter.dynamic_sampling leaves out groups that this advantage may learn from: groups that are all right "
            "or all wrong teach nothing only where the outcomes of a group are compared with each other"
        ),
    ),
    Note(
        lambda c, f: objective_note(c.objective) is not None,
        lambda c, f: f'objective "{_objective(c)}" {objective_note(c.objective)}',
    ),
    Note(
        lambda c, f: expected_aggregation(c.objective) not in (None, c.aggregation_kind),
        lambda c, f: (
            f'objective "{_objective(c)}" is meant for aggregation.kind = "{expected_aggregation(c.objective)}"; '
            "with another one its terms are scaled differently, by length or by count"
        ),
    ),
    Note(
        lambda c, f: grows_with_batch(c.aggregation),
        lambda c, f: (
            f'aggregation "{c.aggregation_kind}" has a gradient that grows with the batch: a larger batch is a larger '
            "step"
        ),
    ),
    Note(
        lambda c, f: grows_with_batch(c.kl_weights) and not grows_with_batch(c.aggregation),
        lambda c, f: (
            f'kl.aggregation = "{c.kl.aggregation}" makes the KL term grow with the batch, and the policy term does '
            "not: its weight depends on the batch's size"
        ),
    ),
    Note(
        lambda c, f: c.learner.target_kl is not None and c.learner.schedule != "constant" and c.updates_per_step > 1,
        lambda c, f: (
            f'learner.schedule = "{c.learner.schedule}" goes by the updates that are made, and learner.target_kl '
            "leaves some out: the learning rate may end above 0"
        ),
    ),
    Note(
        lambda c, f: c.rollout.max_new_tokens > 32768,
        lambda c, f: f"rollout.max_new_tokens = {c.rollout.max_new_tokens:,} is more than most models can take",
    ),
    Note(
        lambda c, f: c.rollout.temperature > 2,
        lambda c, f: f"rollout.temperature = {c.rollout.temperature:g} makes text close to random",
    ),
    Note(
        lambda c, f: f.rows is not None and c.data.prompts_per_step > f.rows,
        lambda c, f: (
            f"data.prompts_per_step = {c.data.prompts_per_step} is more than the {f.rows} prompts there are: "
            "a step takes some of them twice"
        ),
    ),
    Note(
        lambda c, f: c.learner.ppo_epochs > 10,
        lambda c, f: (
            f"learner.ppo_epochs = {c.learner.ppo_epochs}: after so many passes over one rollout the "
            "importance ratio no longer corrects for the distance from the old policy"
        ),
    ),
    Note(
        lambda c, f: c.entropy.coef < 0,
        lambda c, f: f"entropy.coef = {c.entropy.coef:g} lowers the entropy; a bonus is positive",
    ),
    Note(
        lambda c, f: (
            c.reference.every == 1 and c.reference.mixup_alpha == 1 and c.updates_per_step == 1 and c.kl.coef > 0
        ),
        lambda c, f: (
            "reference.every = 1 and reference.mixup_alpha = 1 make the reference the policy before every step: with "
            "one update per rollout the KL term is 0"
        ),
    ),
    Note(
        lambda c, f: c.reference.every >= c.run.steps,
        lambda c, f: (
            f"reference.every = {c.reference.every} is no less than the run's steps: the reference never moves"
        ),
    ),
    Note(
        lambda c, f: c.eval.every > c.run.steps,
        lambda c, f: (
            f"eval.every = {c.eval.every} is more than the run's steps: the policy is evaluated at the end only"
        ),
    ),
    Note(
        lambda c, f: bool(c.eval.every) and bool(c.rewards) and verifier_of(c.rewards, c.eval.verifier) is None,
        lambda c, f: NO_VERIFIER,
    ),
    Note(
        lambda c, f: c.run.steps * c.updates_per_step <= warmup_of(c.critic),
        lambda c, f: (
            f"critic.warmup_steps = {warmup_of(c.critic)} is no less than the run's "
            f"{c.run.steps * c.updates_per_step} updates: the policy is never trained"
        ),
    ),
    Note(
        lambda c, f: c.cluster.facts.idle_workers(c.data.prompts_per_step) > 0,
        lambda c, f: (
            f"of the {c.cluster.facts.workers} workers {c.cluster.facts.idle_workers(c.data.prompts_per_step)} will "
            f"have nothing to do: the {c.data.prompts_per_step} groups of a step are decoded in fewer shards; set "
            "cluster.rollout_workers or cluster.shard_groups lower (cluster.shard_groups is part of the result)"
        ),
    ),
)


def notes_on(config: RunConfig, facts: RunFacts, notes: Sequence[Note] = NOTES) -> list[str]:
    """Return the texts of the notes that hold."""
    return [note.text(config, facts) for note in notes if note.holds(config, facts)]
