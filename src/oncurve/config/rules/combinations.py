"""Rules between settings: impossible combinations, settings that a run lacks, and keys without effect.

Each rule has its condition here and its sentence in `combinations.toml`. A component has the rules about its own
settings (`impossible`, `inert`); these are written against what components say of themselves.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.advantages import TeacherSettings, needs_of, reads_rewards, teacher_of
from oncurve.base.errors import ConfigError, DataError, noted, refuse, suggest
from oncurve.components import Impossible, Inert, nested_in, rules_of, stated
from oncurve.config.layers import Layer
from oncurve.config.sections import SECTIONS, RunConfig
from oncurve.config.warm_start import by_own_name
from oncurve.data import DataSettings, Rows, filled_prompt, prompt_columns
from oncurve.learner import gives_values
from oncurve.losses import corrects, corrects_for_sampler, has_importance_ratio, reads_reference
from oncurve.rewards import RewardSet, RewardSettings, Trial, can_be_tried, component_names, tried, verifier_of
from oncurve.types import Prompt

IMPOSSIBLE_WHERE: dict[str, Callable[[RunConfig], bool]] = {
    "group_too_small": lambda c: (
        c.rollout.group_size < max(c.advantage.min_valid_completions, 1 + _needs(c, "siblings"))
    ),
    "steps_unscored": lambda c: _needs(c, "steps") and bool(c.rewards) and not any(r.scores_steps for r in c.rewards),
    "values_without_critic": lambda c: _needs(c, "values") and not gives_values(c.critic),
    "critic_unread": lambda c: not _needs(c, "values") and gives_values(c.critic),
    "kl_in_steps": lambda c: (_needs(c, "steps") or _needs(c, "components")) and c.kl.in_reward,
    "rewards_below_zero": lambda c: (
        _needs(c, "nonnegative") and (c.kl.in_reward or any(r.weight < 0 or r.below_zero for r in c.rewards))
    ),
    "kl_in_unread_reward": lambda c: c.kl.in_reward and not reads_rewards(c.advantage),
    "quantised_base_trained": lambda c: c.model.quantization is not None and not c.lora.adapted,
    "greedy_sampling": lambda c: c.rollout.temperature == 0,
    "too_few_groups": lambda c: c.learner.minibatches > c.data.prompts_per_step,
    "filter_of_one": lambda c: c.filter.dynamic_sampling and c.rollout.group_size < 2,
    "filter_without_reward": lambda c: c.filter.dynamic_sampling and not c.rewards and not reads_rewards(c.advantage),
    "filter_with_iterations": lambda c: c.filter.dynamic_sampling and c.iterative.steps > 0,
    "target_kl_without_ratio": lambda c: c.learner.target_kl is not None and not has_importance_ratio(c.objective),
    "system_without_chat": lambda c: c.data.system is not None and c.data.chat == "never",
    "template_arguments_without_chat": lambda c: bool(c.data.chat_template_kwargs) and c.data.chat == "never",
    "own_model_missing": lambda c: bool(_by_own_model(c)) and c.own_reward_model is None,
    "own_model_of_other_head": lambda c: (
        c.own_reward_model is not None and any(r.own_model != c.reward_model.head for r in _by_own_model(c))
    ),
    "own_model_unused": lambda c: (
        c.own_reward_model is not None and (bool(c.rewards) or not reads_rewards(c.advantage)) and not _by_own_model(c)
    ),
    "iteration_without_model": lambda c: c.iterative.steps > 0 and c.own_reward_model is None,
    "reference_moved_twice": lambda c: c.iterative.steps > 0 and c.reference.every > 0,
    "curriculum_without_verifier": lambda c: (
        c.data.curriculum != "none" and verifier_of(c.rewards, c.eval.verifier) is None
    ),
    "curriculum_with_filter": lambda c: c.data.curriculum != "none" and c.filter.dynamic_sampling,
    "curriculum_with_weights": lambda c: c.data.curriculum != "none" and bool(getattr(c.data, "weights", None)),
    "verifier_unknown": lambda c: (
        c.eval.verifier is not None and bool(c.rewards) and c.eval.verifier not in component_names(c.rewards)
    ),
    "verifier_scores_no_steps": lambda c: (
        c.iterative.steps > 0
        and c.reward_model.head == "process"
        and not c.iterative.continuations
        and not _verifier_scores_steps(c)
    ),
    "schedule_of_iterations": lambda c: (
        c.iterative.steps > 0 and c.own_reward_model is not None and c.own_reward_model.schedule != "constant"
    ),
    "nothing_held_out": lambda c: (
        c.eval.every > 0 and not (c.data.holds_out or (c.sft.present and c.sft.source(c.data).holds_out))
    ),
    "demonstrations_in_groups": lambda c: c.demonstrates and c.rollout.group_size != 1,
    "demonstrations_by_ratio": lambda c: c.demonstrates and has_importance_ratio(c.objective),
    "critic_on_ranks": lambda c: (c.cluster.facts.processes > 1 or c.cluster.facts.divided) and gives_values(c.critic),
    "iterations_on_processes": lambda c: not c.cluster.facts.alone and c.iterative.steps > 0,
    "other_learner_on_ranks": lambda c: not c.cluster.facts.alone and not c.learner.built_in,
    "quantised_base_divided": lambda c: c.cluster.facts.divided and c.model.quantization is not None,
    "split_masters_divided": lambda c: c.cluster.facts.divided and c.learner.masters == "split",
    "exact_kl_divided": lambda c: c.cluster.facts.divided and "full_kl" in c.policy_term.needs | c.regularizer.needs,
    "vllm_quantised": lambda c: c.cluster.facts.served and c.model.quantization is not None,
    "vllm_stop": lambda c: c.cluster.facts.served and bool(c.rollout.stop),
    "kept_sets_unrecorded": lambda c: (
        bool(c.rollout.truncation) and (c.cluster.facts.served or not stated(c.engine, "records_kept_sets", False))
    ),
    "vllm_temperature": lambda c: c.cluster.facts.served and 0 < c.rollout.temperature < 0.01,
    "episodes_in_iterations": lambda c: c.environment.present and c.iterative.steps > 0,
    "episodes_by_teacher": lambda c: (
        c.environment.present and getattr(teacher_of(c.advantage), "template", None) is not None
    ),
    "reward_of_no_environment": lambda c: not c.environment.present and any(r.scores_turns for r in c.rewards),
    "weights_always_1": lambda c: corrects(c.correction) and c.learner.old_logprobs == "rollout",
    "corrected_twice": lambda c: corrects(c.correction) and corrects_for_sampler(c.objective),
    "apart_twice": lambda c: (
        None not in (c.kl.aggregation, c.entropy.aggregation) and c.kl.aggregation != c.entropy.aggregation
    ),
}

INERT_WHERE: dict[str, Callable[[RunConfig], bool]] = {
    "no_kl": lambda c: c.kl.coef == 0,
    "no_reference": lambda c: c.kl.coef == 0 and not reads_reference(c.objective),
    "reference_fixed": lambda c: c.reference.every == 0,
    "kl_in_loss_not_steered": lambda c: c.kl.where == "loss",
    "kl_not_steered": lambda c: c.kl.where == "reward" and c.kl.target is None,
    "kl_in_reward_estimator": lambda c: c.kl.where == "reward",
    "kl_in_reward_aggregation": lambda c: c.kl.where == "reward",
    "old_policy_is_present": lambda c: c.stays_at_1,
    "one_update": lambda c: c.updates_per_step == 1,
    "template_makes_prompt": lambda c: c.data.template is not None,
    "curriculum_orders": lambda c: c.data.curriculum != "none",
    "no_iterations": lambda c: c.iterative.steps == 0,
    "outcome_continuations": lambda c: c.iterative.steps > 0 and c.reward_model.head != "process",
    "reward_model_not_trained": lambda c: c.iterative.steps == 0 and c.own_reward_model is not None,
    "nothing_evaluated": lambda c: c.eval.every == 0,
    "one_checkpoint": lambda c: c.checkpoint.every == 0,
    "nothing_off_policy": lambda c: c.stays_at_1,
    "one_round": lambda c: not c.filter.dynamic_sampling,
    "no_warm_start": lambda c: not c.sft.present,
    "no_trackers": lambda c: not c.tracking.to,
}


SENTENCES = tomllib.loads(Path(__file__).with_name("combinations.toml").read_text(encoding="utf-8"))

IMPOSSIBLE = tuple(Impossible(holds, SENTENCES["impossible"][name]) for name, holds in IMPOSSIBLE_WHERE.items())

INERT = tuple(
    Inert(tuple(rule["keys"]), tuple(rule["causes"]), INERT_WHERE[name], rule["reason"])
    for name, rule in SENTENCES["inert"].items()
)


def _needs(config: RunConfig, what: str) -> bool:
    """Return whether the advantage states that it needs `what`."""
    return what in needs_of(config.advantage)


def _by_own_model(config: RunConfig) -> list[RewardSettings]:
    """Return the rewards whose values come from the run's own reward model."""
    return [reward for reward in config.rewards if reward.own_model is not None]


def _verifier_scores_steps(config: RunConfig) -> bool:
    named = zip(component_names(config.rewards), config.rewards, strict=True)
    return not config.rewards or any(reward.scores_steps for name, reward in named if name == config.eval.verifier)


def check_config(config: RunConfig) -> None:
    """Raises ConfigError: a rule of what is impossible is broken."""
    reads = "advantage.base.kind" if nested_in(config.advantage) else "advantage.kind"  # the one that reads rewards
    messages = (rule.message for rule in _holding(config, IMPOSSIBLE, "impossible"))
    broken = [re.sub(r"\badvantage\.kind(?=:| to )", reads, message) for message in messages]
    column = config.data.unknown_column()
    broken += [] if column is None else [column]
    source = config.sft.source(config.data) if config.sft.present else None
    broken += [by_own_name(rule.message) for rule in rules_of(source, "impossible") if rule.holds(source)]
    broken += [
        f"rewards.{index}.{rule.message}"
        for index, reward in enumerate(config.rewards)
        for rule in rules_of(reward, "impossible")
        if rule.holds(reward)
    ]
    for index, reward in enumerate(config.rewards):
        with noted(broken, f"rewards.{index}."):
            reward.for_lengths(config.rollout.max_new_tokens)
    taught = getattr(teacher_of(config.advantage), "template", None)
    wrong = None if taught is None else config.data.wrong_template("advantage.template", taught)
    refuse([*broken, *([] if wrong is None else [wrong]), *_wrong_best(config)])


def measured(config: RunConfig) -> list[str]:
    """Return the metrics of an evaluation of which more is better."""
    if verifier_of(config.rewards, config.eval.verifier) is None:
        return ["eval/reward"]
    powers = [2**power for power in range(config.eval.n.bit_length())]
    return ["eval/accuracy", "eval/reward", *(f"eval/{name}@{k}" for name in ("pass", "maj") for k in powers)]


def _wrong_best(config: RunConfig) -> list[str]:
    """Return what is wrong with `checkpoint.best` and `eval.patience`, a line each."""
    best = config.checkpoint.best
    if best is None:
        needs = 'eval.patience: set checkpoint.best to the metric that must get better, like "eval/accuracy"'
        return [needs] if config.eval.patience else []
    if not config.eval.every:
        return ["checkpoint.best: nothing is evaluated while training; set eval.every, like 20"]
    known = measured(config)
    if best in known or not config.rewards:
        return []
    near = suggest(best, known) or ";"
    return [f"checkpoint.best: an evaluation does not give {best!r}{near} it gives {', '.join(known)}"]


def inert_rules(config: RunConfig) -> list[Inert]:
    """Return the rules that hold, between sections and within a component."""
    return _holding(config, INERT, "inert")


def _holding(config: RunConfig, rules: Sequence[Any], name: str) -> list[Any]:
    """Return which of the `rules` between sections hold, and which of those that components have under `name`."""
    parts = [getattr(config, section) for section in SECTIONS]
    parts += [inner for part in parts for inner in nested_in(part)] if name == "impossible" else []
    asked = [(rule, config) for rule in rules] + [(rule, part) for part in parts for rule in rules_of(part, name)]
    return [rule for rule, part in asked if rule.holds(part)]


MISSING_WHERE: dict[str, Callable[[RunConfig], bool]] = {
    "model": lambda c: not c.model.path,
    "demonstrations": lambda c: c.demonstrates and not c.sft.present,
    "reward_model": lambda c: c.own_reward_model is not None and not c.own_reward_model.path,
    "verifier": lambda c: c.iterative.steps > 0 and c.eval.verifier is None,
    "teacher": lambda c: teacher_of(c.advantage) == TeacherSettings(),  # it would teach itself what it does already
    "rewards": lambda c: not c.rewards and reads_rewards(c.advantage),
}


def missing(config: RunConfig, model_given: bool = False) -> list[str]:
    """Return a line for each setting that a run cannot do without and that is not set: model, data, rewards, a teacher.

    `model_given`: the model was handed over as a module, so `model.path` may be empty.
    """
    names = [name for name, holds in MISSING_WHERE.items() if holds(config) and not (name == "model" and model_given)]
    of_data = [] if config.demonstrates else config.data.missing()
    return [*(SENTENCES["missing"][name] for name in names), *of_data, *config.environment.missing()]


def check_complete(config: RunConfig, model_given: bool = False) -> None:
    """Raises ConfigError with every line of `missing`."""
    refuse(missing(config, model_given))


def check_inert(config: RunConfig, layers: Sequence[Layer]) -> None:
    """Raises ConfigError where one layer sets both a key and what makes it meaningless.

    Across layers it is no error: `kl.coef=0` on the command line switches off what a recipe has set up.
    """
    said = []
    written = (layer for layer in layers if not layer.complete)
    keys_of = [(layer, {".".join(map(str, path)) for path, _ in layer.assignments}) for layer in written]
    for rule in inert_rules(config):
        decided_by = [
            next((layer for layer, keys in reversed(keys_of) if cause in keys), None) for cause in rule.causes
        ]
        for layer, keys in keys_of:
            if any(layer is decider for decider in decided_by):
                said += [f"{key}: set to no effect: {rule.reason} ({layer.name})" for key in rule.keys if key in keys]
    refuse(said)


def inert(config: RunConfig) -> list[str]:
    """Return a line for each key that is not at its default and has no effect."""
    return [
        f"{key} has no effect: {rule.reason}"
        for rule in inert_rules(config)
        for key in rule.keys
        if not _is_default(config, *key.split("."))
    ]


def _is_default(config: RunConfig, section: str, name: str) -> bool:
    """Return whether a key has its default, or is none of the section's kind."""
    part = getattr(config, section)
    field = type(part).model_fields.get(name)
    return field is None or getattr(part, name) == field.default


ROWS_OF_A_TRIAL = 8
"""Rows on which rewards are tried, where none applies to the first."""


def check_columns(rewards: RewardSet, settings: DataSettings, *sources: Rows) -> None:
    """Raises DataError, with its place, at the first row of `sources` that lacks what a reward needs.

    Of generated rows, which are all alike, the first is looked at.
    """
    for rows in sources:
        some = rows.first(1) if rows.generated else rows
        rewards.check_rows(
            (prompt_columns(row, settings) for row in some.items),
            lambda index, some=some: some.place(some.numbers[index]),  # type: ignore[misc]
        )


def trials_on(rewards: RewardSet, settings: DataSettings, rows: Rows, index: int) -> dict[str, Trial]:
    """Return the trials on a row, by the names of the rewards that can be tried."""
    row, number = rows.items[index], rows.numbers[index]
    prompt = _prompt(row, number, settings)
    place = rows.place(number)
    return {one.name: tried(one, prompt, place) for one in rewards.components if can_be_tried(one)}


def _prompt(row: Mapping[str, Any], number: int, settings: DataSettings) -> Prompt:
    """Return the prompt of a row as rewards see it, without the tokens, which they are not given."""
    try:
        asked = filled_prompt(row, settings)
    except (KeyError, DataError):  # a row of completions to be checked need not have a prompt
        asked = ""
    chat = isinstance(asked, list | tuple) and all(isinstance(message, Mapping) for message in asked)
    text = "\n".join(str(message.get("content", "")) for message in asked) if chat else str(asked)
    return Prompt(number, text, (), prompt_columns(row, settings), tuple(asked) if chat else None)


def try_rewards(rewards: RewardSet, settings: DataSettings, rows: Rows) -> list[str]:
    """Call each reward for the first row, with its reference answer and with a made-up text; returns warnings.

    Rewards that load a network, ask a service, need the model's tokens or run as the user's code in this process are
    not tried. Where no reward applies to the first row, the next ones are tried.

    Raises ConfigError: a reward fails for the reference answer, too, or none applies. DataError: a column cannot be
    sent to a worker.
    """
    weights = {one.name: one.settings.weight for one in rewards.components}
    all_are_tried = all(map(can_be_tried, rewards.components))
    for index in range(min(len(rows), ROWS_OF_A_TRIAL)):
        trials = trials_on(rewards, settings, rows, index)
        broken = [trial.broken for name, trial in trials.items() if trial.broken is not None and weights[name]]
        if broken:
            again = (
                "correct the function; `oncurve reward check`, with the words of `oncurve train`, shows what it gives"
            )
            raise ConfigError("\n".join([*broken, again]))
        applies = any((trial.reference, trial.made_up, trial.faulted) != (None,) * 3 for trial in trials.values())
        if applies or not all_are_tried:
            return [*filter(None, (trial.faulted for trial in trials.values())), *blind(rewards, trials, rows, index)]
    if rewards.components and len(rows):
        none = f"{', '.join(weights)} returned None for the reference answer and for a made-up completion"
        fix = "return a number, or name the column of the answer"
        raise ConfigError(f"no reward applies to {rows.place(rows.numbers[0])} nor to the rows after it: {none}; {fix}")
    return []


def blind(rewards: RewardSet, trials: Mapping[str, Trial], rows: Rows, index: int = 0) -> list[str]:
    """Return a warning for each reward that gives a row's reference answer no more than a made-up text."""
    return [
        f"reward {one.name} gives {trial.reference:g} for the reference answer of {rows.place(rows.numbers[index])} "
        f"and {trial.made_up:g} for a made-up text: does it compare with the right column, in the right form?"
        for one in rewards.components
        if one.settings.weight > 0 and not one.settings.shapes and _reads_answer(one)
        for trial in [trials.get(one.name)]
        if trial is not None and trial.blind
    ]


def _reads_answer(component: Any) -> bool:
    """Return whether a reward is given the column of the answer by name."""
    accepts, answer = component.accepts, getattr(component.settings, "answer", "answer")
    return answer in (*accepts.takes, *(name for names in accepts.needs for name in names))
