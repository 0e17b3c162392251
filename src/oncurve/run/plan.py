"""The plan in words: what a step will do, before it does it; and notes on what looks like a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oncurve.kl import KL_KINDS
from oncurve.learner import warmup_of
from oncurve.learner.reward_model import NoRewardModel
from oncurve.losses import Reinforce, SeqMeanTokenSum, Sequence, TokenSum
from oncurve.rewards.rewardset import verifier_of
from oncurve.run.checks import inert, missing
from oncurve.run.config import RunConfig

__all__ = ["NOTES", "NO_VERIFIER", "Facts", "Note", "plan"]

NO_VERIFIER = (
    "accuracy, pass@k and maj@k are not reported: the rewards do not say which one tells a right completion; name it, "
    "eval.judge=NAME"
)
"""Where several rewards count and none of them alone checks the answer."""


@dataclass(frozen=True)
class Facts:
    """What is known once data and model are there; None: not known yet. Example: `Facts(rows=7473, device="cpu")`.

    rows, eval_rows, dropped   training prompts, held-out prompts, prompts left out as too long
    parameters                 of the model
    reference_bytes            what the frozen reference takes
    reference_given            whether it is a model of its own, not a copy of the policy
    kept                       whether the run has a directory
    device, path_reason        where the model runs; which path it takes and why
    precision                  what it computes in, and why
    exact_engine               whether completions are of the present weights, as the built-in engine's are
    """

    rows: int | None = None
    eval_rows: int | None = None
    dropped: int = 0
    parameters: int | None = None
    reference_bytes: int | None = None
    reference_given: bool = False
    kept: bool = True
    device: str | None = None
    path_reason: str | None = None
    precision: str | None = None
    exact_engine: bool = True


@dataclass(frozen=True)
class Note:
    """Settings that are allowed and rarely meant: where they `hold`, `text` says what to think of them."""

    holds: Callable[[RunConfig, Facts], bool]
    text: Callable[[RunConfig, Facts], str]


def plan(config: RunConfig, facts: Facts | None = None) -> list[str]:
    """The plan, a sentence a line; then what looks like a mistake, each line beginning with `note: `."""
    known = facts or Facts()
    lines = [
        _updates(config, known),
        _lengths(config),
        _kl(config, known),
        *_reference(config, known),
        *_iterations(config),
    ]
    lines += [_steps(config, known), *_model(config, known), _judging(config, known), _safety(config, known)]
    notes = [note.text(config, known) for note in NOTES if note.holds(config, known)]
    return (
        lines
        + [f"note: {text}" for text in [*notes, *inert(config)]]
        + [f"missing: {hole.replace(' missing;', '')}" for hole in missing(config, known.parameters is not None)]
    )


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _updates(config: RunConfig, facts: Facts) -> str:
    data, learner, group = config.data, config.learner, config.rollout.group_size
    completions = _count(config.completions_per_step, "completion")
    head = f"{_count(data.prompts_per_step, 'prompt')} × {group} = {completions} a step"
    pieces = _count(learner.minibatches, "minibatch", "minibatches")
    updates = f"{pieces} × {_count(learner.passes, 'pass', 'passes')} = {_count(config.updates_per_step, 'update')}"
    if isinstance(config.objective, Reinforce):
        return f"{head}, {updates}."
    if config.updates_per_step == 1 and facts.exact_engine:
        return f"{head}, {updates}: with one update per rollout the ratio is 1 and clipping cannot bind."
    old = "recomputed before the first" if learner.old_logprobs == "recompute" else "those that the sampler recorded"
    if facts.exact_engine:
        return f"{head}, {updates}; clipping can bind from the 2nd; the old log-probs are {old}."
    return (
        f"{head}, {updates}; the engine is not exact, so clipping can bind from the 1st; the old log-probs are {old}, "
        "and those that the sampler recorded of completions by older weights."
    )


def _lengths(config: RunConfig) -> str:
    rollout = config.rollout
    most = config.completions_per_step * rollout.max_new_tokens
    waiting = config.completions_per_step > rollout.rows
    sampled = f", sampled at most {rollout.rows} completions side by side (rollout.rows)" if waiting else ""
    left_out = "; those that do not end by then are left out of the loss" if config.filter.mask_truncated else ""
    return (
        f"Completions have at most {_count(rollout.max_new_tokens, 'token')} at temperature {rollout.temperature:g}: "
        f"at most {most:,} tokens a step{sampled}{left_out}."
    )


def _kl(config: RunConfig, facts: Facts) -> str:
    size = "as large as the model" if facts.reference_bytes is None else f"{facts.reference_bytes / 1e6:,.0f} MB"
    if not config.kl.coef:
        head = "No KL term (kl.coef = 0): nothing holds the policy near where it began"
        if not facts.reference_given:
            return f"{head}, and no reference is kept."
        return f"{head}, unless the objective does. The reference that was given is scored ({size})."
    apart = f" with an aggregation of its own, {config.kl.aggregation}" if config.kl.aggregation else ""
    what = f"{config.kl.coef:g} × {config.kl.estimator} in the loss{apart}"
    if config.kl.where == "reward":
        steered = "" if config.kl.target is None else f", steered to {config.kl.target:g} a token"
        what = f"{config.kl.coef:g} × (log π_old - log π_ref) taken from each token's reward{steered}"
    towards = "the reference that was given" if facts.reference_given else "the policy as it is given"
    kept = "it" if facts.reference_given else "its frozen copy"
    return f"KL to {towards}, {what}; {kept} takes memory ({size})."


def _reference(config: RunConfig, facts: Facts) -> list[str]:
    every, mixup = config.following.every, config.following.mixup
    if not every or not (config.kl.coef or facts.reference_given):
        return []
    often = "every step" if every == 1 else f"every {_count(every, 'step')}"
    if mixup == 1:
        return [f"The reference follows the policy {often}: it becomes a copy of it."]
    return [
        f"The reference follows the policy {often}: {mixup:g} of the policy, {1 - mixup:g} of what it was; in half "
        "precision a float32 average takes 4 more bytes a parameter."
    ]


def _iterations(config: RunConfig) -> list[str]:
    settings, judge = config.iterative, config.reward_model
    if not settings.steps or isinstance(judge, NoRewardModel):
        return []
    learned = "pairs" if judge.head == "outcome" else "completions with labelled steps"
    by = f"{config.eval.judge!r} judges" + (
        f", with {settings.roll_outs} roll-outs a step," if settings.roll_outs else ""
    )
    earlier = "" if settings.history is None else f" (at first those of {Path(settings.history).name})"
    count = -(-config.run.steps // settings.steps)
    return [
        f"{_count(count, 'iteration')} of {_count(settings.steps, 'step')}; each ends with "
        f"{_count(judge.epochs, 'pass', 'passes')} of the reward model over {learned} that {by} of its own samples "
        f"and over {settings.replay:.0%} of all earlier examples{earlier}; {settings.held_out:.0%} of the prompts are "
        "held out to judge it."
    ]


def _steps(config: RunConfig, facts: Facts) -> str:
    taken = config.run.steps * config.data.prompts_per_step
    take = "takes" if config.run.steps == 1 else "take"
    head = f"{_count(config.run.steps, 'step')} {take} {_count(taken, 'prompt')}"
    if facts.rows is None:
        return f"{head}."
    dropped = f"; {_count(facts.dropped, 'prompt')} too long, dropped" if facts.dropped else ""
    epochs = "1 epoch" if taken == facts.rows else f"{taken / facts.rows:.3g} epochs"
    return f"{head}: {epochs} of {_count(facts.rows, 'row')}{dropped}."


def _model(config: RunConfig, facts: Facts) -> list[str]:
    if facts.parameters is None:
        here = config.model.precision_here()
        return [] if here is None else [f"The model computes in {here[0]} ({here[1]})."]
    where = f" on {facts.device}" if facts.device else ""
    how = f", in {facts.precision}" if facts.precision else ""
    why = f"; {facts.path_reason}" if facts.path_reason else ""
    return [f"The model has {facts.parameters:,} parameters{where}{how}{why}."]


def _judging(config: RunConfig, facts: Facts) -> str:
    if not config.eval.every:
        return "No evaluation while training (eval.every = 0)."
    limits = [count for count in (facts.eval_rows, config.eval.limit) if count is not None]
    how_many = f"{_count(min(limits), 'held-out prompt')}" if limits else "the held-out prompts"
    sampled = f" and {_count(config.eval.n, 'sample')} each" if config.eval.n else ""
    verifier = verifier_of(config.rewards, config.eval.judge)
    correct = "" if verifier is None else f"; correct is what {verifier!r} gives 1"
    return f"Evaluation every {_count(config.eval.every, 'step')} on {how_many}: greedy{sampled}{correct}."


def _safety(config: RunConfig, facts: Facts) -> str:
    if not facts.kept:
        return "Nothing is written: the run has no directory, and ends with this process."
    if not config.checkpoint.every:
        return "One checkpoint, at the end (checkpoint.every = 0): a killed run begins anew."
    return f"A checkpoint every {_count(config.checkpoint.every, 'step')}, the last {config.checkpoint.keep} kept."


def _policy_updates(config: RunConfig) -> int:
    """Updates of the run, without those in which a critic alone is trained."""
    return config.run.steps * config.updates_per_step - warmup_of(config.critic)


NOTES: tuple[Note, ...] = (
    Note(
        lambda c, f: c.learner.learning_rate > 1e-2,
        lambda c, f: (
            f"learner.learning_rate = {c.learner.learning_rate:g} is above 0.01; policies are trained at 1e-6 to 1e-4"
        ),
    ),
    Note(lambda c, f: c.learner.learning_rate == 0, lambda c, f: "learner.learning_rate = 0: nothing will be learned"),
    Note(
        lambda c, f: 0 < _policy_updates(c) <= c.learner.warmup_steps,
        lambda c, f: (
            f"learner.warmup_steps = {c.learner.warmup_steps} is no less than the policy's "
            f"{_policy_updates(c)} updates: the learning rate never reaches its peak"
        ),
    ),
    Note(
        lambda c, f: c.kl.loss_coef > 0 and c.kl.estimator == "k1",
        lambda c, f: (
            'kl.estimator = "k1" in the loss pulls nowhere on-policy: the expectation of its gradient is 0. '
            "k2 and k3+ have the exact gradient of the KL, k3 a biased one that pulls"
        ),
    ),
    Note(
        lambda c, f: isinstance(c.objective, Reinforce) and c.updates_per_step > 1,
        lambda c, f: (
            f'objective "reinforce" has no ratio: of {c.updates_per_step} updates per rollout only the first is '
            'on-policy, and nothing corrects the others; objective.kind = "clipped" does'
        ),
    ),
    Note(
        lambda c, f: isinstance(c.objective, Sequence) and not isinstance(c.aggregation, SeqMeanTokenSum),
        lambda c, f: (
            'objective "sequence" is a mean over completions with aggregation.kind = "seq-mean-token-sum"; '
            "with another it is scaled differently, by length or by count"
        ),
    ),
    Note(
        lambda c, f: isinstance(c.aggregation, TokenSum),
        lambda c, f: (
            'aggregation "token-sum" has a gradient that grows with the batch: a larger batch is a larger step'
        ),
    ),
    Note(
        lambda c, f: isinstance(c.kl_weights, TokenSum) and not isinstance(c.aggregation, TokenSum),
        lambda c, f: (
            'kl.aggregation = "token-sum" makes the KL term grow with the batch, and the policy term does not: its '
            "weight depends on the batch's size"
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
            "a step asks some of them twice"
        ),
    ),
    Note(
        lambda c, f: c.learner.passes > 10,
        lambda c, f: (
            f"learner.passes = {c.learner.passes}: so many passes over one rollout leave the region the ratio holds in"
        ),
    ),
    Note(
        lambda c, f: c.entropy.coef < 0,
        lambda c, f: f"entropy.coef = {c.entropy.coef:g} punishes undecidedness; a bonus is positive",
    ),
    Note(
        lambda c, f: c.reference.every == 1 and c.reference.mixup == 1 and c.updates_per_step == 1 and c.kl.coef > 0,
        lambda c, f: (
            "reference.every = 1 and reference.mixup = 1 make the reference the policy before every step: with one "
            "update per rollout the KL term is 0"
        ),
    ),
    Note(
        lambda c, f: c.reference.every >= c.run.steps,
        lambda c, f: f"reference.every = {c.reference.every} is no less than the run's steps: it never moves",
    ),
    Note(
        lambda c, f: c.eval.every > c.run.steps,
        lambda c, f: f"eval.every = {c.eval.every} is more than the run's steps: it is evaluated at the end only",
    ),
    Note(
        lambda c, f: bool(c.eval.every) and bool(c.rewards) and verifier_of(c.rewards, c.eval.judge) is None,
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
        lambda c, f: "full_kl" in KL_KINDS[c.kl.estimator].needs and c.kl.loss_coef > 0,
        lambda c, f: (
            'kl.estimator = "full" compares whole distributions at every token: slower, without sampling noise'
        ),
    ),
)
