"""The plan in words: what a run will do, a sentence a line. `notes.py` has what looks like a mistake."""

from __future__ import annotations

from pathlib import Path

from oncurve.advantages import teacher_of
from oncurve.components import described
from oncurve.config.rules.completeness import missing
from oncurve.config.rules.without_effect import inert
from oncurve.config.sections import RunConfig
from oncurve.config.sentences.notes import AdapterFacts, RunFacts, notes_on
from oncurve.environments import NoEnvironment
from oncurve.losses import corrects, corrects_for_sampler, has_importance_ratio
from oncurve.rewards import verifier_of


def plan(config: RunConfig, facts: RunFacts | None = None) -> list[str]:
    """Return the plan, one sentence per line; then what looks like a mistake, each line beginning with `note: `."""
    known = facts or RunFacts()
    lines = [
        *_warm_start(config),
        _updates(config),
        *_dynamic_sampling(config),
        *_policy_term(config),
        *_learner(config),
        *config.cluster.facts.sentences,
        *_environment(config),
        *([] if config.demonstrates and not (config.eval.every and config.data.holds_out) else [_lengths(config)]),
        _kl(config, known),
        *_reference(config, known),
        *_entropy(config),
        *_teacher(config, known.teacher_bytes),
        *_iterations(config),
    ]
    lines += [_steps(config, known), *_model(config, known), *_adapter(config, known.adapter, known.parameters)]
    lines += [_evaluation(config, known), _safety(config, known)]
    noted = config.over(10**12)  # an unknown number of steps is more than any setting
    return (
        lines
        + [f"note: {text}" for text in [*notes_on(noted, known), *inert(config)]]
        + [f"missing: {hole.replace(' missing;', '')}" for hole in missing(config, known.parameters is not None)]
    )


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _warm_start(config: RunConfig) -> list[str]:
    """Return the sentence about the stage of `[sft]`, or about the run that is one; none without."""
    sft = config.sft
    if not config.warm_starts:
        whole = "all tokens" if sft.train_on_prompts else "the completions' tokens"
        says = f"It learns from demonstrations, by maximum likelihood of {whole} at temperature 1; nothing is sampled"
        return [f"{says} but in evaluations."] if config.demonstrates else []
    last = _count(sft.steps, "step") if sft.steps else _epochs(sft.epochs)
    return [
        f"Before step 1 a warm start on demonstrations: {last}, {sft.batch_size:,} per update, at a learning rate of "
        f"{sft.learning_rate:g}. It is a run of its own in the folder sft, with whose model step 1 "
        "begins."
    ]


def _updates(config: RunConfig) -> str:
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


def _dynamic_sampling(config: RunConfig) -> list[str]:
    if not config.filter.dynamic_sampling:
        return []
    verifier, most = verifier_of(config.rewards, config.eval.verifier), config.filter.max_rounds
    kept = "whose rewards differ (no reward is the verifier)"
    if verifier is not None:
        kept = f"with right and wrong completions, right where {verifier!r} gives 1"
    return [
        f"It trains on groups {kept}, and samples up to {_count(most, 'round')} of {config.data.prompts_per_step} "
        f"prompts to find as many: at most {most * config.completions_per_step:,} completions per step."
        + (" Groups beyond that wait for the next step." if config.filter.keeps_surplus else "")
    ]


def _policy_term(config: RunConfig) -> list[str]:
    """Return what is corrected and what is left out, a sentence each; none where every token counts as it is."""
    exact, filters = config.exact_rollout, config.filter
    lines = []
    if corrects(config.correction):
        equation = described(config.correction)
        where = (
            "of a completion by older weights (a completion by the present ones has weight 1, because the engine is "
            "exact: where there are no others, nothing is corrected)"
            if exact
            else "(the engine is not exact)"
        )
        meaning = "; ".join(f"{letter} = {text}" for letter, text in equation.legend.items())
        lines.append(
            f"Correction: the objective's loss of each token {where} is multiplied by {equation.term}; {meaning}."
        )
    elif not exact and not corrects_for_sampler(config.objective):
        lines.append(
            'Nothing corrects for the difference between sampler and learner (correction.kind = "none"), but for the '
            "ratio to completions by older weights."
        )
    if filters.top_entropy < 1:
        lines.append(
            f"The objective counts the {filters.top_entropy:.3g} of a step's trained tokens with the highest entropy "
            "before its first update."
        )
    if filters.off_policy_threshold is not None:
        lines.append(
            "The objective leaves out tokens with a negative advantage of completions whose mean of log μ - log π_θ is "
            f"above {filters.off_policy_threshold:g}, μ being the sampler's policy."
        )
    return lines


def _learner(config: RunConfig) -> list[str]:
    if config.learner.built_in:
        return []
    name = type(config.learner).__name__
    return [f"The learner is {name}, not the built-in one: its memory and its time per update are not known here."]


def _lengths(config: RunConfig) -> str:
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
    return (
        f"Completions have at most {_count(rollout.max_new_tokens, 'token')} at temperature {rollout.temperature:g}: "
        f"at most {most:,} tokens per step{sampled}{left_out}."
    )


def _environment(config: RunConfig) -> list[str]:
    """Return the sentence about episodes; none where completions are of one turn."""
    settings = config.environment
    if isinstance(settings, NoEnvironment):
        return []
    again = "" if settings.exact else "; it is not exact, so a resumed run does not go on to the same bits"
    return [
        f"A completion is an episode with {settings.title}: at most {_count(settings.max_turns, 'turn')}, and "
        f"rollout.max_new_tokens counts what the environment says. It runs in "
        f"{_count(settings.processes, 'other process', 'other processes')}, at most {settings.timeout_seconds:g} s per "
        f"reply, while other episodes are decoded{again}."
    ]


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


def _teacher(config: RunConfig, held: int | None) -> list[str]:
    """Return the sentence about the teacher, which takes `held` bytes (None: not known yet); none without one."""
    teacher = teacher_of(config.advantage)
    if teacher is None:
        return []
    reads = "the policy's prompts" if teacher.template is None else "prompts of its own (advantage.template)"
    if teacher.path is None:
        return [f"The policy teaches itself: it scores every completion a second time, after {reads}."]
    size = "a frozen model" if held is None else f"{held / 1e6:,.0f} MB"
    return [f"The teacher {Path(teacher.path).name} scores every completion, after {reads}; it takes memory ({size})."]


def _adapter(config: RunConfig, adapter: AdapterFacts | None, of: int | None) -> list[str]:
    """Say what is trained, in one sentence; none without an adapter. `of`: the model's own parameters."""
    lora = config.lora
    if adapter is None and not lora.adapted:
        return []
    origin = f" from {lora.path}" if lora.path is not None else ""
    if adapter is None:
        rank = f" of rank {lora.rank} (α {lora.scaled_by:g})" if not origin else ""
        where = "all linear layers" if lora.targets == "all-linear" else " and ".join(lora.targets)
        on = f" on {where}" if not origin else ""
        return [f"An adapter{origin}{rank}{on} is trained; the model's own weights stay as they are."]
    share = f", {adapter.parameters / of:.2%} of the model's" if of else ""
    return [
        f"An adapter{origin} of rank {adapter.rank} (α {adapter.alpha:g}) on {adapter.layers:,} linear layers is "
        f"trained, {adapter.parameters:,} parameters{share}; the model's own weights stay as they are."
    ]


def _reference_of_adapter(config: RunConfig, adapter: AdapterFacts | None) -> str:
    """Say what the reference of a policy with an adapter is, and the memory that it takes."""
    copy = "a frozen copy of the adapter" + ("" if adapter is None else f" ({adapter.nbytes / 1e6:,.3g} MB)")
    if config.lora.path is not None or config.warm_starts:
        return f"that is the model with {copy}: no second model"
    moves = f", and from its first move with {copy}" if config.following.every else ""
    return f"that is the model with its adapter off{moves}: no second model"


def _reference(config: RunConfig, facts: RunFacts) -> list[str]:
    every, mixup_alpha = config.following.every, config.following.mixup_alpha
    if not every or not (config.kl.coef or facts.reference_given):
        return []
    often = "every step" if every == 1 else f"every {_count(every, 'step')}"
    if mixup_alpha == 1:
        return [f"The reference follows the policy {often}: it becomes a copy of it."]
    return [
        f"The reference follows the policy {often}: {mixup_alpha:g} of the policy, {1 - mixup_alpha:g} of what it was; "
        "in half precision a float32 average takes 4 more bytes per parameter."
    ]


def _entropy(config: RunConfig) -> list[str]:
    bonus = config.entropy
    if bonus.target is None:
        return []
    return [
        f"The entropy bonus acts while the entropy is below {bonus.target:g} nats per token: its coefficient begins at "
        f"{bonus.coef:g}, grows by {bonus.step:g} per step there and falls by as much above."
    ]


def _iterations(config: RunConfig) -> list[str]:
    settings, network = config.iterative, config.own_reward_model
    if not settings.steps or network is None:
        return []
    verifier = "the verifier" if config.eval.verifier is None else repr(config.eval.verifier)
    by = f"{verifier} scores" + (
        f", with {settings.continuations} continuations per step," if settings.continuations else ""
    )
    earlier = "" if settings.history is None else f" (at first those of {Path(settings.history).name})"
    count = -(-config.run.steps // settings.steps)
    head = "Iterations" if config.run.epochs is not None else _count(count, "iteration")
    return [
        f"{head} of {_count(settings.steps, 'step')}; each ends with "
        f"{_count(network.epochs, 'pass', 'passes')} of the reward model over {network.examples} that {by} of its own "
        f"samples and over {settings.replay:.0%} of all earlier examples{earlier}; {settings.held_out:.0%} of the "
        "prompts are held out to measure it."
    ]


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


def _epochs(number: float) -> str:
    return "1 epoch" if number == 1 else f"{number:.3g} epochs"


def _model(config: RunConfig, facts: RunFacts) -> list[str]:
    if facts.parameters is None:
        here = config.model.precision_here()
        return [] if here is None else [f"The model computes in {here[0]} ({here[1]})."]
    where = f" on {facts.device}" if facts.device else ""
    how = f", in {facts.precision}" if facts.precision else ""
    why = f"; {facts.path_reason}" if facts.path_reason else ""
    return [f"The model has {facts.parameters:,} parameters{where}{how}{why}."]


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


def _safety(config: RunConfig, facts: RunFacts) -> str:
    if not facts.kept:
        return "Nothing is written: the run has no directory and is lost when this process ends."
    if not config.checkpoint.every:
        return "One checkpoint, at the end (checkpoint.every = 0): a killed run starts from the beginning."
    every, keep = config.checkpoint.every, config.checkpoint.keep
    kept = "all kept" if keep * every >= config.run.steps else f"the last {keep} kept"
    return f"A checkpoint every {_count(every, 'step')}, {kept}."
