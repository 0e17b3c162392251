"""Rules between settings: impossible combinations, and keys without effect (`config.without_effect` reports them).

Literal tables, a line per rule, each with its reason. A component has the rules about its own settings (`impossible`,
`inert`); here are those between sections, written against what components say of themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from oncurve.advantages import needs_of, reads_rewards
from oncurve.base.errors import ConfigError
from oncurve.components import Impossible, Inert, nested_in, rules_of
from oncurve.config.rules import policy_term
from oncurve.config.rules.best import wrong_best
from oncurve.config.rules.teaching import wrong_template
from oncurve.config.sections import SECTIONS, RunConfig
from oncurve.learner import gives_values
from oncurve.losses import has_importance_ratio, reads_reference
from oncurve.rewards import RewardSettings, check_reward, component_names

IMPOSSIBLE: tuple[Impossible, ...] = (
    Impossible(
        lambda c: c.rollout.group_size < max(c.advantage.min_valid_completions, 1 + _needs(c, "siblings")),
        "rollout.group_size: an advantage is relative to its group, and a group of this size has too few completions; "
        "set it to 2 at least, or to what the advantage needs",
    ),
    Impossible(
        lambda c: _needs(c, "steps") and bool(c.rewards) and not any(r.scores_steps for r in c.rewards),
        "advantage.kind: the advantage needs rewards of the steps of a completion, and none of the rewards gives any; "
        'add one that does (kind = "python" or "task_steps"), or set advantage.kind to "grpo", for whole completions',
    ),
    Impossible(
        lambda c: _needs(c, "values") and not gives_values(c.critic),
        'critic.kind: the advantage needs a critic\'s values, and there is no critic; set it to "own", or '
        'advantage.kind to "grpo", which compares completions of one prompt',
    ),
    Impossible(
        lambda c: not _needs(c, "values") and gives_values(c.critic),
        'critic.kind: the advantage reads no values (its `needs` lacks "values"), so a critic would have no '
        'effect; set critic.kind to "none", or advantage.kind to "gae"',
    ),
    Impossible(
        lambda c: (_needs(c, "steps") or _needs(c, "components")) and c.kl.in_reward,
        'kl.where: the advantage needs rewards of steps, or single rewards, which hold no KL; set it to "loss"',
    ),
    Impossible(
        lambda c: _needs(c, "nonnegative") and (c.kl.in_reward or any(r.weight < 0 or r.below_zero for r in c.rewards)),
        "advantage.kind: the advantage needs rewards of 0 or more, and a KL in the reward (kl.where), a punishment or "
        'a reward of negative weight makes them negative; change that, or set advantage.kind to "grpo"',
    ),
    Impossible(
        lambda c: c.kl.in_reward and not reads_rewards(c.advantage),
        'kl.where: the advantage reads no rewards, so a KL in them would have no effect; set it to "loss"',
    ),
    Impossible(
        lambda c: c.model.quantization is not None and not c.lora.adapted,
        "model.quantization: quantised weights cannot be trained, only an adapter over them; set lora.rank, like 16",
    ),
    Impossible(
        lambda c: c.rollout.temperature == 0,
        "rollout.temperature: 0 makes all completions of a group the same, and greedy text has no density to train; "
        "set it above 0, like 1.0",
    ),
    Impossible(
        lambda c: c.learner.minibatches > c.data.prompts_per_step,
        "learner.minibatches: minibatches are made of whole groups, and there are fewer groups per step "
        "(data.prompts_per_step) than minibatches; lower the one or raise the other",
    ),
    Impossible(
        lambda c: c.filter.dynamic_sampling and c.rollout.group_size < 2,
        "filter.dynamic_sampling: a group of one completion is never both right and wrong; set rollout.group_size to 2 "
        "at least",
    ),
    Impossible(
        lambda c: c.filter.dynamic_sampling and not c.rewards and not reads_rewards(c.advantage),
        "filter.dynamic_sampling: without a reward no group has right and wrong completions; add a [[rewards]] table, "
        "or leave it out",
    ),
    Impossible(
        lambda c: c.filter.dynamic_sampling and c.iterative.steps > 0,
        "filter.dynamic_sampling: a group that waits for the next iteration would have the rewards of the reward model "
        "before its training; leave it or [iterative] out",
    ),
    Impossible(
        lambda c: c.learner.target_kl is not None and not has_importance_ratio(c.objective),
        "learner.target_kl: the objective has no importance ratio, from which the KL would be estimated; leave it out, "
        'or set objective.kind to "clipped"',
    ),
    Impossible(
        lambda c: c.data.system is not None and c.data.chat == "never",
        'data.chat: "never" leaves no place for data.system, which is a message of a chat; leave one of them out',
    ),
    Impossible(
        lambda c: bool(c.data.chat_template_kwargs) and c.data.chat == "never",
        'data.chat: "never" renders no chat template, so data.chat_template_kwargs would have no effect; leave one of '
        "them out",
    ),
    Impossible(
        lambda c: bool(_by_own_model(c)) and c.own_reward_model is None,
        'reward_model.kind: a reward of kind "model" or "process_model" without a path takes its values from '
        "the run's own reward model, and there is none; give the reward a path, or set [reward_model]",
    ),
    Impossible(
        lambda c: c.own_reward_model is not None and any(r.own_model != c.reward_model.head for r in _by_own_model(c)),
        'reward_model.kind: "outcome" is for rewards of kind = "model", "process" for those of kind = "process_model"; '
        "set the one or the other",
    ),
    Impossible(
        lambda c: (
            c.own_reward_model is not None
            and (bool(c.rewards) or not reads_rewards(c.advantage))
            and not _by_own_model(c)
        ),
        'reward_model.kind: no reward uses the reward model; add a [[rewards]] table with kind = "model" (or '
        '"process_model") and no path, or leave the section out',
    ),
    Impossible(
        lambda c: c.iterative.steps > 0 and c.own_reward_model is None,
        "iterative.steps: an iteration ends with the training of the run's own reward model, and there is none; set "
        "[reward_model], or, for a moving reference alone, reference.every",
    ),
    Impossible(
        lambda c: c.iterative.steps > 0 and c.reference.every > 0,
        "reference.every: iterations move the reference themselves, every iterative.steps; leave one of them out",
    ),
    Impossible(
        lambda c: c.eval.verifier is not None and bool(c.rewards) and c.eval.verifier not in component_names(c.rewards),
        'eval.verifier: none of the rewards has that name; name one of them, like [[rewards]] name = "truth", '
        "weight = 0",
    ),
    Impossible(
        lambda c: (
            c.iterative.steps > 0
            and c.reward_model.head == "process"
            and not c.iterative.continuations
            and not _verifier_scores_steps(c)
        ),
        "eval.verifier: a process reward model learns from scored steps, and this verifier scores whole answers; name "
        "one that scores steps, or set iterative.continuations, which find the labels",
    ),
    Impossible(
        lambda c: (
            c.iterative.steps > 0 and c.own_reward_model is not None and c.own_reward_model.schedule != "constant"
        ),
        'reward_model.schedule: how many updates all iterations make is not known before the run; set it to "constant"',
    ),
    Impossible(
        lambda c: c.eval.every > 0 and not c.data.holds_out,
        "eval.every: there are no held-out prompts to evaluate on; set data.eval_path, data.eval_split or "
        "data.eval_fraction",
    ),
    Impossible(
        lambda c: (c.cluster.facts.processes > 1 or c.cluster.facts.divided) and gives_values(c.critic),
        "critic.kind: a critic is not trained on several ranks or in shards; set cluster.learner_ranks to 1 and "
        'cluster.sharding to "replicate", or critic.kind to "none" with an advantage that needs no values, like '
        'advantage.kind = "grpo"',
    ),
    Impossible(
        lambda c: not c.cluster.facts.alone and c.iterative.steps > 0,
        "iterative.steps: a reward model is not trained in a run of several processes; set cluster.kind to "
        '"none", or leave [iterative] out',
    ),
    Impossible(
        lambda c: not c.cluster.facts.alone and not c.learner.built_in,
        'learner.kind: ranks are copies of the built-in learner; set it to "local", or cluster.kind to "none"',
    ),
    Impossible(
        lambda c: c.cluster.facts.divided and c.model.quantization is not None,
        "model.quantization: a quantised base is not divided among ranks; leave it out, or set cluster.sharding to "
        '"replicate"',
    ),
    Impossible(
        lambda c: c.cluster.facts.divided and c.learner.masters == "split",
        'learner.masters: with cluster.sharding = "fsdp" a rank has float32 shards and no bfloat16 weights next to '
        'them; set it to "float32"',
    ),
    Impossible(
        lambda c: c.cluster.facts.served and c.model.quantization is not None,
        "model.quantization: vLLM servers get whole weights, and a quantised base has none; leave it out, or set "
        'cluster.engine to "own"',
    ),
    Impossible(
        lambda c: c.cluster.facts.served and bool(c.rollout.stop),
        'rollout.stop: vLLM workers get token ids and return token ids, without text; set cluster.engine to "own", or '
        "stop by rollout.eos_ids",
    ),
    Impossible(
        lambda c: c.cluster.facts.served and 0 < c.rollout.temperature < 0.01,
        'rollout.temperature: vLLM takes 0.01 for lower ones; raise it, or set cluster.engine to "own"',
    ),
    *policy_term.IMPOSSIBLE,
)

INERT: tuple[Inert, ...] = (
    Inert(
        ("kl.estimator", "kl.where", "kl.aggregation"),
        ("kl.coef",),
        lambda c: c.kl.coef == 0,
        "kl.coef = 0 means that there is no KL term",
    ),
    Inert(
        ("reference.every", "reference.mixup_alpha"),
        ("kl.coef",),
        lambda c: c.kl.coef == 0 and not reads_reference(c.objective),
        "kl.coef = 0 means that the reference is not used",
    ),
    Inert(
        ("reference.mixup_alpha",),
        ("reference.every",),
        lambda c: c.reference.every == 0,
        "reference.every = 0 keeps the reference as it was given",
    ),
    Inert(
        ("kl.target", "kl.horizon"),
        ("kl.where",),
        lambda c: c.kl.where == "loss",
        'kl.where = "loss" has a constant coefficient; only that of kl.where = "reward" is adapted',
    ),
    Inert(
        ("kl.horizon",),
        ("kl.target",),
        lambda c: c.kl.where == "reward" and c.kl.target is None,
        "without kl.target the coefficient is constant",
    ),
    Inert(
        ("kl.estimator",),
        ("kl.where",),
        lambda c: c.kl.where == "reward",
        'kl.where = "reward" takes the difference of the log-probs at the sampled token (k1)',
    ),
    Inert(
        ("kl.aggregation",),
        ("kl.where",),
        lambda c: c.kl.where == "reward",
        'kl.where = "reward" leaves no KL term in the loss',
    ),
    Inert(
        ("learner.old_logprobs",),
        ("learner.ppo_epochs", "learner.minibatches"),
        lambda c: c.stays_at_1,
        "with one update per rollout of an exact engine the old policy is the present one",
    ),
    Inert(
        ("learner.target_kl",),
        ("learner.ppo_epochs", "learner.minibatches"),
        lambda c: c.updates_per_step == 1,
        "with one update per rollout there is none to leave out",
    ),
    Inert(
        ("data.prompt_column",),
        ("data.template",),
        lambda c: c.data.template is not None,
        "data.template makes the prompt",
    ),
    Inert(
        (
            "iterative.replay",
            "iterative.held_out",
            "iterative.continuations",
            "iterative.history",
        ),
        ("iterative.steps",),
        lambda c: c.iterative.steps == 0,
        "iterative.steps = 0 means that there are no iterations",
    ),
    Inert(
        ("iterative.continuations",),
        ("iterative.steps",),
        lambda c: c.iterative.steps > 0 and c.reward_model.head != "process",
        "continuations label steps, and an outcome model learns from pairs",
    ),
    Inert(
        (
            "reward_model.learning_rate",
            "reward_model.schedule",
            "reward_model.epochs",
            "reward_model.batch_size",
            "reward_model.center",
        ),
        ("iterative.steps",),
        lambda c: c.iterative.steps == 0 and c.own_reward_model is not None,
        "without iterations the reward model is not trained",
    ),
    Inert(
        ("eval.n", "eval.at_start", "eval.max_new_tokens"),
        ("eval.every",),
        lambda c: c.eval.every == 0,
        "eval.every = 0 means that nothing is evaluated",
    ),
    Inert(
        ("checkpoint.keep",),
        ("checkpoint.every",),
        lambda c: c.checkpoint.every == 0,
        "checkpoint.every = 0 makes one checkpoint, at the end",
    ),
    *policy_term.INERT,
)


def _needs(config: RunConfig, what: str) -> bool:
    """Whether the advantage states that it needs `what`."""
    return what in needs_of(config.advantage)


def _by_own_model(config: RunConfig) -> list[RewardSettings]:
    """The rewards whose values come from the run's own reward model."""
    return [reward for reward in config.rewards if reward.own_model is not None]


def _verifier_scores_steps(config: RunConfig) -> bool:
    named = zip(component_names(config.rewards), config.rewards, strict=True)
    return not config.rewards or any(reward.scores_steps for name, reward in named if name == config.eval.verifier)


def check_config(config: RunConfig) -> None:
    """Raises ConfigError: a component is none or misstates what it is, or a rule of what is impossible is broken."""
    components = [(name, section.check(getattr(config, name))) for name, section in SECTIONS.items()]
    components += [(f"rewards.{index}", check_reward(reward)) for index, reward in enumerate(config.rewards)]
    misstated = [f"{name}.kind: {problem}" for name, problem in components if problem is not None]
    if misstated:
        raise ConfigError("\n".join(misstated))
    reads = "advantage.base.kind" if nested_in(config.advantage) else "advantage.kind"  # the one that reads rewards
    messages = (rule.message for rule in _holding(config, IMPOSSIBLE, "impossible"))
    broken = [re.sub(r"\badvantage\.kind(?=:| to )", reads, message) for message in messages]
    column = config.data.unknown_column()
    broken += [] if column is None else [column]
    broken += [
        f"rewards.{index}.{rule.message}"
        for index, reward in enumerate(config.rewards)
        for rule in rules_of(reward, "impossible")
        if rule.holds(reward)
    ]
    broken += filter(None, (_unfit(index, reward, config) for index, reward in enumerate(config.rewards)))
    broken += wrong_template(config) + wrong_best(config)
    if broken:
        raise ConfigError("\n".join(broken))


def _unfit(index: int, reward: RewardSettings, config: RunConfig) -> str | None:
    """Why a reward does not fit the lengths of completions; None: it does."""
    try:
        reward.for_lengths(config.rollout.max_new_tokens)
    except ConfigError as error:
        return f"rewards.{index}.{error}"
    return None


def inert_rules(config: RunConfig) -> list[Inert]:
    """The rules that hold, between sections and within a component."""
    return _holding(config, INERT, "inert")


def _holding(config: RunConfig, rules: Sequence[Any], name: str) -> list[Any]:
    """Which of the `rules` between sections hold, and which of those that components have under `name`."""
    parts = [getattr(config, section) for section in SECTIONS]
    parts += [inner for part in parts for inner in nested_in(part)] if name == "impossible" else []
    asked = [(rule, config) for rule in rules] + [(rule, part) for part in parts for rule in rules_of(part, name)]
    return [rule for rule, part in asked if rule.holds(part)]
