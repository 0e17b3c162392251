"""The plan in words: what a run will do, a sentence a line. `notes.py` has what looks like a mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from oncurve.advantages import TeacherSettings, teacher_of
from oncurve.components import described
from oncurve.config.rules.completeness import missing
from oncurve.config.rules.without_effect import inert
from oncurve.config.sections import RunConfig
from oncurve.config.sentences.notes import AdapterFacts, Filling, RunFacts, Words, notes_on, sentences_of
from oncurve.losses import corrects, corrects_for_sampler, has_importance_ratio
from oncurve.rewards import verifier_of

_SENTENCES = sentences_of("plan.toml")


def plan(config: RunConfig, facts: RunFacts | None = None) -> list[str]:
    """Return the plan, one sentence per line; then what looks like a mistake, each line beginning with `note: `."""
    known = facts or RunFacts()
    filling, lines = Filling(config, known, WORDS), list[str]()
    for holds, sentence in PLAN:
        if holds(config, known):
            text = _SENTENCES[sentence].format_map(filling) if isinstance(sentence, str) else sentence(config, known)
            lines += [text] if isinstance(text, str) else text
    noted = config.over(10**12)  # an unknown number of steps is more than any setting
    return (
        lines
        + [f"note: {text}" for text in [*notes_on(noted, known), *inert(config)]]
        + [f"missing: {hole.replace(' missing;', '')}" for hole in missing(config, known.parameters is not None)]
    )


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _epochs(number: float) -> str:
    return "1 epoch" if number == 1 else f"{number:.3g} epochs"


def _updates(config: RunConfig, facts: RunFacts) -> str:
    data, learner, group = config.data, config.learner, config.rollout.group_size
    completions = _count(config.completions_per_step, "completion")
    head = f"{_count(data.prompts_per_step, 'prompt')} × {group} = {completions} per step"
    if config.demonstrates:
        head = f"{_count(data.prompts_per_step, 'demonstration')} per step"
    pieces = _count(learner.minibatches, "minibatch", "minibatches")
    updates = f"{pieces} × {_count(learner.ppo_epochs, 'pass', 'passes')} = {_count(config.updates_per_step, 'update')}"
    if learner.target_kl is not None and config.updates_per_step > 1:
        updates += f", fewer where the KL to the old policy is above {learner.target_kl:g} per token"
    if config.updates_per_step > 1:
        updates += f", each at the whole learning rate: a step goes up to {config.updates_per_step} times as far as one"
    if not has_importance_ratio(config.objective):
        return f"{head}, {updates}."
    corrected = corrects(config.correction)
    if config.stays_at_1 or (corrected and config.updates_per_step == 1):
        return f"{head}, {updates}: with one update per rollout the ratio is 1 and clipping cannot bind."
    old = (
        "recomputed before the first update"
        if config.old_logprobs == "recompute"
        else "those that the sampler recorded"
    )
    if corrected or (config.exact_rollout and not config.trains_older):
        return f"{head}, {updates}; clipping can bind from the 2nd update; the old log-probs are {old}."
    why = "some groups are of the step before" if config.exact_rollout else "the engine is not exact"
    why = "completions are by older weights (cluster.lag)" if config.cluster.facts.lag else why
    return (
        f"{head}, {updates}; {why}, so clipping can bind from the 1st update; the old log-probs are "
        f"{old}, and of completions by older weights those that the sampler recorded."
    )


def _lengths(config: RunConfig, facts: RunFacts) -> str:
    rollout = config.rollout
    if config.demonstrates:
        return f"Completions in evaluations have at most {_count(config.longest_completion, 'token')}."
    most = config.completions_per_step * rollout.max_new_tokens
    rows = rollout.rows_at_once(config.model.torch_device.type)
    waiting = config.completions_per_step > rows
    sampled = f", at most {rows} completions sampled at a time (rollout.max_concurrent)" if waiting else ""
    left_out = (
        "; those that do not end within this limit are left out of the loss" if config.filter.mask_truncated else ""
    )
    cut = f" with {rollout.truncation} (the learner trains on the same kept sets)" if rollout.truncation else ""
    if cut and config.model.torch_device.type == "cuda":
        cut += ", decoded token by token from the host, without CUDA graphs,"
    return (
        f"Completions have at most {_count(rollout.max_new_tokens, 'token')} at temperature {rollout.temperature:g}"
        f"{cut}: "
        f"at most {most:,} tokens per step{sampled}{left_out}."
    )


def _environment(config: RunConfig, facts: RunFacts) -> str:
    settings: Any = config.environment  # there is one
    again = "" if settings.exact else "; it is not exact, so a resumed run does not go on to the same bits"
    where = _count(settings.processes, "other process", "other processes") + f", at most {settings.timeout_seconds:g} s"
    if settings.in_this_process:
        where = "this process, because its objects cannot be copied, without a limit"
    return (
        f"A completion is an episode with {settings.title}: at most {_count(settings.max_turns, 'turn')}, and "
        f"rollout.max_new_tokens counts what the environment says. It runs in {where} per reply, while other episodes "
        f"are decoded{again}."
    )


def _kl(config: RunConfig, facts: RunFacts) -> str:
    size = "as large as the model" if facts.reference_bytes is None else f"{facts.reference_bytes / 1e6:,.0f} MB"
    if not config.kl.coef:
        head = "No KL regularization (kl.coef = 0)"
        if not facts.reference_given:
            return f"{head}: no reference is kept."
        return f"{head}, unless the objective adds it. The reference that was given is scored ({size})."
    apart = f" with an aggregation of its own, {config.kl.aggregation}" if config.kl.aggregation else ""
    what = f"{config.kl.coef:g} × {config.kl.estimator} in the loss{apart}"
    if config.kl.where == "reward":
        steered = "" if config.kl.target is None else f", steered to {config.kl.target:g} per token"
        what = f"{config.kl.coef:g} × (log π_old - log π_ref) subtracted from each token's reward{steered}"
    towards = "the reference that was given" if facts.reference_given else "the policy as it is given"
    if not facts.reference_given and (facts.adapter is not None or config.lora.adapted):
        return f"KL to {towards}, {what}; {_reference_of_adapter(config, facts.adapter)}."
    kept = "it" if facts.reference_given else "its frozen copy"
    return f"KL to {towards}, {what}; {kept} takes memory ({size})."


def _reference_of_adapter(config: RunConfig, adapter: AdapterFacts | None) -> str:
    """Say what the reference of a policy with an adapter is, and the memory that it takes."""
    copy = "a frozen copy of the adapter" + ("" if adapter is None else f" ({adapter.nbytes / 1e6:,.3g} MB)")
    if config.lora.path is not None or config.warm_starts:
        return f"that is the model with {copy}: no second model"
    moves = f", and from its first move with {copy}" if config.following.every else ""
    return f"that is the model with its adapter off{moves}: no second model"


def _steps(config: RunConfig, facts: RunFacts) -> str:
    if config.run.epochs is not None:
        count = _count(config.data.prompts_per_step, "demonstration" if config.demonstrates else "prompt")
        return f"{_epochs(config.run.epochs)} of the training rows, {count} per step."
    taken = config.run.steps * config.data.prompts_per_step
    take = "takes" if config.run.steps == 1 else "take"
    least = "at least " if config.filter.dynamic_sampling else ""
    noun = "demonstration" if config.demonstrates else "prompt"
    head = f"{_count(config.run.steps, 'step')} {take} {least}{_count(taken, noun)}"
    if facts.rows is None:
        return f"{head}."
    dropped = f"; {_count(facts.dropped, noun)} too long, dropped" if facts.dropped else ""
    dropped += f"; {_count(facts.truncated, 'prompt')} too long, cut on the left" if facts.truncated else ""
    return f"{head}: {_epochs(taken / facts.rows)} of {_count(facts.rows, 'row')}{dropped}."


def _evaluation(config: RunConfig, facts: RunFacts) -> str:
    if not config.eval.every:
        return "No evaluation while training (eval.every = 0)."
    limits = [count for count in (facts.eval_rows, config.eval.limit) if count is not None]
    how_many = f"{_count(min(limits), 'held-out prompt')}" if limits else "the held-out prompts"
    sampled = f" and {_count(config.eval.n, 'sample')} each" if config.eval.n else ""
    sampled += f" at temperature {config.eval.temperature:g}" if sampled and config.eval.temperature else ""
    verifier = verifier_of(config.rewards, config.eval.verifier)
    correct = "" if verifier is None else f"; a completion is correct where {verifier!r} gives 1"
    when = f"{'before step 1 and ' if config.eval.at_start else ''}every {_count(config.eval.every, 'step')}"
    if config.demonstrates and not config.data.holds_out:
        return f"Evaluation {when}: the loss of the held-out demonstrations."
    correct += (
        "; and the loss of the held-out demonstrations"
        if config.demonstrates and config.sft.source(config.data).holds_out
        else ""
    )
    best = config.checkpoint.best
    kept = "" if best is None or not facts.kept else f" The checkpoint with the best {best} stays."
    patience = config.eval.patience
    ends = f" The run ends after {_count(patience, 'evaluation')} without a better one." if patience else ""
    return f"Evaluation {when} on {how_many}: greedy{sampled}{correct}.{kept}{ends}"


def _kept_groups(config: RunConfig) -> str:
    verifier = verifier_of(config.rewards, config.eval.verifier)
    if verifier is None:
        return "whose rewards differ (no reward is the verifier)"
    return f"with right and wrong completions, right where {verifier!r} gives 1"


def _teacher(config: RunConfig) -> TeacherSettings:
    """Return the settings of the teacher, which there is."""
    teacher = teacher_of(config.advantage)
    assert teacher is not None
    return teacher


def _adapter_layers(config: RunConfig) -> str:
    """Return rank and layers of an adapter that is made new; nothing of one that is loaded."""
    lora = config.lora
    where = "all linear layers" if lora.targets == "all-linear" else " and ".join(lora.targets)
    return "" if lora.path is not None else f" of rank {lora.rank} (α {lora.scaled_by:g}) on {where}"


def _moves(config: RunConfig, facts: RunFacts) -> bool:
    return config.following.every > 0 and bool(config.kl.coef or facts.reference_given)


def _taught(config: RunConfig, by_itself: bool) -> bool:
    teacher = teacher_of(config.advantage)
    return teacher is not None and (teacher.path is None) == by_itself


def _labels(config: RunConfig) -> str:
    verifier = "the verifier" if config.eval.verifier is None else repr(config.eval.verifier)
    steps = config.iterative.continuations
    return f"{verifier} scores" + (f", with {steps} continuations per step," if steps else "")


WORDS: Words = {
    "learned": lambda c, f: "all tokens" if c.sft.train_on_prompts else "the completions' tokens",
    "warm_up": lambda c, f: _count(c.sft.steps, "step") if c.sft.steps else _epochs(c.sft.epochs),
    "kept_groups": lambda c, f: _kept_groups(c),
    "rounds": lambda c, f: _count(c.filter.max_rounds, "round"),
    "most_completions": lambda c, f: c.filter.max_rounds * c.completions_per_step,
    "surplus": lambda c, f: " Groups beyond that wait for the next step." if c.filter.keeps_surplus else "",
    "correction": lambda c, f: described(c.correction),
    "correction_letters": lambda c, f: "; ".join(f"{a} = {b}" for a, b in described(c.correction).legend.items()),
    "learner": lambda c, f: type(c.learner).__name__,
    "often": lambda c, f: "every step" if c.following.every == 1 else f"every {_count(c.following.every, 'step')}",
    "kept_share": lambda c, f: 1 - c.following.mixup_alpha,
    "teacher": lambda c, f: Path(_teacher(c).path or "").name,
    "teacher_reads": lambda c, f: (
        "the policy's prompts" if _teacher(c).template is None else "prompts of its own (advantage.template)"
    ),
    "teacher_size": lambda c, f: "a frozen model" if f.teacher_bytes is None else f"{f.teacher_bytes / 1e6:,.0f} MB",
    "iterations": lambda c, f: (
        "Iterations" if c.run.epochs is not None else _count(-(-c.run.steps // c.iterative.steps), "iteration")
    ),
    "iteration_steps": lambda c, f: _count(c.iterative.steps, "step"),
    "passes": lambda c, f: _count(c.own_reward_model.epochs if c.own_reward_model else 0, "pass", "passes"),
    "labels": lambda c, f: _labels(c),
    "earlier": lambda c, f: f" (at first those of {Path(c.iterative.history).name})" if c.iterative.history else "",
    "here": lambda c, f: c.model.precision_here(),
    "device": lambda c, f: f" on {f.device}" if f.device else "",
    "in_precision": lambda c, f: f", in {f.precision}" if f.precision else "",
    "path_reason": lambda c, f: f"; {f.path_reason}" if f.path_reason else "",
    "adapter_origin": lambda c, f: f" from {c.lora.path}" if c.lora.path is not None else "",
    "adapter_layers": lambda c, f: _adapter_layers(c),
    "adapter_share": lambda c, f: (
        f", {f.adapter.parameters / f.parameters:.2%} of the model's" if f.adapter and f.parameters else ""
    ),
    "checkpoint_steps": lambda c, f: _count(c.checkpoint.every, "step"),
    "checkpoints_kept": lambda c, f: (
        "all kept" if c.checkpoint.keep * c.checkpoint.every >= c.run.steps else f"the last {c.checkpoint.keep} kept"
    ),
}

PLAN: tuple[tuple[Callable[[RunConfig, RunFacts], bool], str | Callable[[RunConfig, RunFacts], Any]], ...] = (
    (lambda c, f: c.demonstrates, "learns"),
    (lambda c, f: c.warm_starts, "warm_start"),
    (lambda c, f: True, _updates),
    (lambda c, f: c.filter.dynamic_sampling, "filtered"),
    (lambda c, f: corrects(c.correction) and c.exact_rollout, "corrected_if_older"),
    (lambda c, f: corrects(c.correction) and not c.exact_rollout, "corrected"),
    (
        lambda c, f: not (corrects(c.correction) or c.exact_rollout or corrects_for_sampler(c.objective)),
        "uncorrected",
    ),
    (lambda c, f: c.filter.top_entropy < 1, "top_entropy"),
    (lambda c, f: c.filter.off_policy_threshold is not None, "off_policy"),
    (lambda c, f: not c.learner.built_in, "other_learner"),
    (lambda c, f: True, lambda c, f: c.cluster.facts.sentences),
    (lambda c, f: c.environment.present, _environment),
    (lambda c, f: not c.demonstrates or bool(c.eval.every and c.data.holds_out), _lengths),
    (lambda c, f: True, _kl),
    (lambda c, f: _moves(c, f) and c.following.mixup_alpha == 1, "reference_copied"),
    (lambda c, f: _moves(c, f) and c.following.mixup_alpha != 1, "reference_averaged"),
    (lambda c, f: c.entropy.target is not None, "entropy_bonus"),
    (lambda c, f: _taught(c, by_itself=True), "teaches_itself"),
    (lambda c, f: _taught(c, by_itself=False), "taught"),
    (lambda c, f: c.iterative.steps > 0 and c.own_reward_model is not None, "iterations"),
    (lambda c, f: True, _steps),
    (lambda c, f: f.parameters is None and c.model.precision_here() is not None, "precision"),
    (lambda c, f: f.parameters is not None, "model"),
    (lambda c, f: f.adapter is None and c.lora.adapted, "adapter_to_come"),
    (lambda c, f: f.adapter is not None, "adapter"),
    (lambda c, f: True, _evaluation),
    (lambda c, f: not f.kept, "nothing_written"),
    (lambda c, f: f.kept and not c.checkpoint.every, "one_checkpoint"),
    (lambda c, f: f.kept and c.checkpoint.every > 0, "checkpoints"),
)
"""The sentences in their order, each with where it holds."""
