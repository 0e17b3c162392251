"""What goes with what: impossible combinations, keys that others make meaningless, what a run still misses.

Three literal tables, a line a rule, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oncurve.advantages import GroupAdvantage, check_advantage, needs_of
from oncurve.data import InMemory, Jsonl
from oncurve.errors import ConfigError
from oncurve.learner import gives_values
from oncurve.learner.reward_model import NoRewardModel, ProcessModel, RewardModelSettings
from oncurve.losses import OBJECTIVE_KINDS, check_objective
from oncurve.rewards.model import NetworkReward
from oncurve.rewards.rewardset import part_names
from oncurve.run.config import SECTIONS, RunConfig
from oncurve.run.layers import Layer

__all__ = [
    "IMPOSSIBLE",
    "INERT",
    "Impossible",
    "Inert",
    "check_complete",
    "check_config",
    "check_inert",
    "inert",
    "missing",
]


@dataclass(frozen=True)
class Impossible:
    """Settings that cannot be together: where they are, the message names the key, the reason and the mend."""

    holds: Callable[[RunConfig], bool]
    message: str


@dataclass(frozen=True)
class Inert:
    """Keys without a meaning where `holds`, because of `causes` (keys as well) and for a `reason`."""

    keys: tuple[str, ...]
    causes: tuple[str, ...]
    holds: Callable[[RunConfig], bool]
    reason: str


IMPOSSIBLE: tuple[Impossible, ...] = (
    Impossible(
        lambda c: c.rollout.group_size < max(c.advantage.least_valid, 1 + _needs(c, "siblings")),
        "rollout.group_size: a completion is graded against its siblings, and a group of this size has too few; "
        "set it to 2 at least, or to what the advantage needs",
    ),
    Impossible(
        lambda c: _needs(c, "steps") and bool(c.rewards) and not any(r.judges_steps for r in c.rewards),
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
        'critic.kind: the advantage reads no values (its `needs` lacks "values"), so a critic would learn from '
        'nothing; set critic.kind to "none", or advantage.kind to "gae"',
    ),
    Impossible(
        lambda c: _needs(c, "steps") and c.kl.in_reward,
        'kl.where: the advantage needs rewards of steps, which have no KL of their own; set it to "loss"',
    ),
    Impossible(
        lambda c: c.rollout.temperature == 0,
        "rollout.temperature: 0 makes all completions of a group the same, and greedy text has no density to train; "
        "set it above 0, like 1.0",
    ),
    Impossible(
        lambda c: c.learner.minibatches > c.data.prompts_per_step,
        "learner.minibatches: minibatches are made of whole groups, and there are fewer groups a step "
        "(data.prompts_per_step) than minibatches; lower the one or raise the other",
    ),
    Impossible(
        lambda c: c.data.system is not None and c.data.chat == "never",
        'data.chat: "never" leaves no place for data.system, which is a message of a chat; leave one of them out',
    ),
    Impossible(
        lambda c: isinstance(c.data, Jsonl) and c.data.eval_path is not None and c.data.eval_path == c.data.path,
        "data.eval_path: held-out prompts cannot be the training prompts; name another file, or set data.eval_fraction",
    ),
    Impossible(
        lambda c: bool(_own_networks(c)) and isinstance(c.reward_model, NoRewardModel),
        'reward_model.kind: a reward of kind "model" or "process_model" without a path judges with the own reward '
        "model, and there is none; give the reward a path, or set [reward_model]",
    ),
    Impossible(
        lambda c: any(r.head != c.reward_model.head for r in _own_networks(c) if isinstance(c.reward_model, _OWN)),
        'reward_model.kind: "outcome" is for rewards of kind = "model", "process" for those of kind = "process_model"; '
        "set the one or the other",
    ),
    Impossible(
        lambda c: isinstance(c.reward_model, _OWN) and bool(c.rewards) and not _own_networks(c),
        'reward_model.kind: nobody asks the reward model; add a [[rewards]] table with kind = "model" (or '
        '"process_model") and no path, or leave the section out',
    ),
    Impossible(
        lambda c: c.iterative.steps > 0 and isinstance(c.reward_model, NoRewardModel),
        "iterative.steps: an iteration ends with the training of the run's own reward model, and there is none; set "
        "[reward_model], or, for a moving reference alone, reference.every",
    ),
    Impossible(
        lambda c: c.iterative.steps > 0 and c.reference.every > 0,
        "reference.every: iterations move the reference themselves, every iterative.steps; leave one of them out",
    ),
    Impossible(
        lambda c: c.eval.judge is not None and bool(c.rewards) and c.eval.judge not in part_names(c.rewards),
        'eval.judge: none of the rewards has that name; name one of them, like [[rewards]] name = "truth", weight = 0',
    ),
    Impossible(
        lambda c: (
            c.iterative.steps > 0
            and isinstance(c.reward_model, ProcessModel)
            and not c.iterative.roll_outs
            and not _judge_sees_steps(c)
        ),
        "eval.judge: a process reward model learns from judged steps, and this judge looks at answers alone; name "
        "one that judges steps, or have labels found by iterative.roll_outs",
    ),
    Impossible(
        lambda c: c.iterative.steps > 0 and isinstance(c.reward_model, _OWN) and c.reward_model.schedule != "constant",
        'reward_model.schedule: the updates of all iterations are not known beforehand; set it to "constant"',
    ),
    Impossible(
        lambda c: c.eval.every > 0 and not c.data.holds_out,
        "eval.every: there are no held-out prompts to judge on; set data.eval_path or data.eval_fraction",
    ),
)

INERT: tuple[Inert, ...] = (
    Inert(
        ("kl.estimator", "kl.where", "kl.aggregation"),
        ("kl.coef",),
        lambda c: c.kl.coef == 0,
        "kl.coef = 0 means that there is no KL term",
    ),
    Inert(
        ("reference.every", "reference.mixup"),
        ("kl.coef",),
        lambda c: c.kl.coef == 0 and _is_shipped(c.objective),
        "kl.coef = 0 means that nobody asks the reference",
    ),
    Inert(
        ("reference.mixup",),
        ("reference.every",),
        lambda c: c.reference.every == 0,
        "reference.every = 0 keeps the reference as it was given",
    ),
    Inert(
        ("kl.target", "kl.horizon"),
        ("kl.where",),
        lambda c: c.kl.where == "loss",
        'kl.where = "loss" keeps its coefficient; only that in the "reward" is steered',
    ),
    Inert(
        ("kl.horizon",),
        ("kl.target",),
        lambda c: c.kl.where == "reward" and c.kl.target is None,
        "without kl.target nothing is steered",
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
        ("advantage.ddof", "advantage.eps"),
        ("advantage.scale",),
        lambda c: isinstance(c.advantage, GroupAdvantage) and c.advantage.scale == "none",
        'advantage.scale = "none" divides by no standard deviation',
    ),
    Inert(
        ("learner.old_logprobs",),
        ("learner.passes", "learner.minibatches"),
        lambda c: c.updates_per_step == 1,
        "with one update per rollout of the built-in engine, which is exact, the old policy is the present one",
    ),
    Inert(
        ("data.prompt_column",),
        ("data.template",),
        lambda c: c.data.template is not None,
        "data.template makes the prompt",
    ),
    Inert(
        ("data.eval_fraction",),
        ("data.eval_path",),
        lambda c: isinstance(c.data, Jsonl) and c.data.eval_path is not None,
        "data.eval_path has the held-out rows",
    ),
    Inert(
        (
            "iterative.replay",
            "iterative.held_out",
            "iterative.roll_outs",
            "iterative.history",
        ),
        ("iterative.steps",),
        lambda c: c.iterative.steps == 0,
        "iterative.steps = 0 means that there are no iterations",
    ),
    Inert(
        ("iterative.roll_outs",),
        ("iterative.steps",),
        lambda c: c.iterative.steps > 0 and not isinstance(c.reward_model, ProcessModel),
        "roll-outs label steps, and an outcome model learns from pairs",
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
        lambda c: c.iterative.steps == 0 and isinstance(c.reward_model, _OWN),
        "without iterations the reward model is not trained",
    ),
    Inert(
        ("eval.n",),
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
)


def _needs(config: RunConfig, what: str) -> bool:
    """Whether the advantage states that it needs `what`."""
    return what in needs_of(config.advantage)


def _is_shipped(objective: object) -> bool:
    """Whether it is one of oncurve's own, which leave the reference to the KL term."""
    return type(objective) in OBJECTIVE_KINDS.values()


_OWN = RewardModelSettings


def _own_networks(config: RunConfig) -> list[NetworkReward]:
    """The rewards that judge with the run's own reward model."""
    return [reward for reward in config.rewards if isinstance(reward, NetworkReward) and reward.path is None]


def _judge_sees_steps(config: RunConfig) -> bool:
    named = zip(part_names(config.rewards), config.rewards, strict=True)
    return not config.rewards or any(reward.judges_steps for name, reward in named if name == config.eval.judge)


def check_config(config: RunConfig) -> None:
    """Raises ConfigError: a component states what there is not, or every rule of `IMPOSSIBLE` that is broken."""
    misstated = [
        f"{section}.kind: {problem}"
        for section, look in (("advantage", check_advantage), ("objective", check_objective))
        if (problem := look(getattr(config, section))) is not None
    ]
    if misstated:
        raise ConfigError("\n".join(misstated))
    broken = [rule.message for rule in IMPOSSIBLE if rule.holds(config)]
    if broken:
        raise ConfigError("\n".join(broken))


def check_inert(config: RunConfig, layers: Sequence[Layer]) -> None:
    """Raises ConfigError where a layer sets a key and, in the same breath, what makes it meaningless.

    Over layers it is no error: `kl.coef=0` on the command line switches off what a recipe has set up.
    """
    said = []
    keys_of = [(layer, _keys(layer)) for layer in layers if not layer.complete]
    for rule in (rule for rule in INERT if rule.holds(config)):
        decided_by = [
            next((layer for layer, keys in reversed(keys_of) if cause in keys), None) for cause in rule.causes
        ]
        for layer, keys in keys_of:
            if any(layer is decider for decider in decided_by):
                said += [f"{key}: set to no effect: {rule.reason} ({layer.name})" for key in rule.keys if key in keys]
    if said:
        raise ConfigError("\n".join(said))


def _keys(layer: Layer) -> set[str]:
    return {".".join(map(str, path)) for path, _ in layer.assignments}


def inert(config: RunConfig) -> list[str]:
    """A line for each key that is set to something other than its default and means nothing."""
    return [
        f"{key} has no effect: {rule.reason}"
        for rule in INERT
        if rule.holds(config)
        for key in rule.keys
        if _value(config, key) != _default(config, key)
    ]


def _value(config: RunConfig, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name, None)


def _default(config: RunConfig, key: str) -> Any:
    section, name = key.split(".")
    field = type(getattr(config, section)).model_fields.get(name)
    return None if field is None else field.default


def missing(config: RunConfig, model_given: bool = False) -> list[str]:
    """A line for each setting that a run cannot do without and that nobody has given: model, data, rewards.

    `model_given`: the model was handed over as a module, so `model.path` may be empty.
    """
    holes = []
    if not config.model.path and not model_given:
        holes.append("model.path: missing; name a folder or a hub id, like model.path=Qwen/Qwen2.5-0.5B-Instruct")
    if isinstance(config.data, Jsonl) and not config.data.path:
        kinds = ", ".join(SECTIONS["data"].kinds)
        holes.append(f"data.path: missing; name a JSONL file, or choose another data.kind of: {kinds}")
    if isinstance(config.data, InMemory) and not config.data.rows:
        holes.append("data.rows: missing; a list in memory needs rows")
    if isinstance(config.reward_model, _OWN) and not config.reward_model.path:
        holes.append("reward_model.path: missing; name a reward model's folder or a hub id")
    if config.iterative.steps and config.eval.judge is None:
        holes.append('eval.judge: missing; name the reward that judges samples, like [[rewards]] name = "truth"')
    if not config.rewards:
        holes.append('rewards: missing; add a [[rewards]] table, like kind = "math"')
    return holes


def check_complete(config: RunConfig, model_given: bool = False) -> None:
    """Raises ConfigError with every line of `missing`."""
    holes = missing(config, model_given)
    if holes:
        raise ConfigError("\n".join(holes))
