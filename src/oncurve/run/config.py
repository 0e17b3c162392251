"""The whole configuration of a run: one frozen object, a section a field, depth 2.

The class defaults are the vetted setting (the preset `grpo`). Where a section has a choice of components, `kind`
chooses one; `SECTIONS` is the table of those choices. What goes with what is checked in `oncurve.run.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, SkipValidation
from torch import Tensor

from oncurve.advantages import ADVANTAGE_KINDS, GroupAdvantage
from oncurve.data import DATA_KINDS, DataSettings, Jsonl
from oncurve.errors import ConfigError
from oncurve.learner import CRITIC_KINDS, LearnerConfig, ReferenceSettings
from oncurve.learner.critic import Critic, NoCritic
from oncurve.losses import (
    AGGREGATION_KINDS,
    OBJECTIVE_KINDS,
    Clipped,
    KLPenalty,
    Objective,
    SeqMeanTokenSumNorm,
    TokenMean,
)
from oncurve.models.huggingface import ModelConfig
from oncurve.rewards import REWARD_KINDS, RewardSettings
from oncurve.rewards.settings import kind_meant
from oncurve.rollout import Sampling
from oncurve.spec import Component, build, suggest, validated
from oncurve.trainer.protocols import Advantage
from oncurve.types import TrainBatch

__all__ = [
    "SECTIONS",
    "CheckpointSettings",
    "EntropyBonus",
    "EvalSettings",
    "FilterSettings",
    "RunConfig",
    "RunSettings",
    "Section",
    "build_config",
]


Aggregation = Callable[[TrainBatch], Tensor]

IN_MEMORY = "in-memory:"  # begins what a resolved file holds in place of an object that has no path

# What the rest of a run asks of a section's component, which a class of the user's may lack.
PROMISES = {
    "advantage": ("__call__", "least_valid"),
    "objective": ("__call__", "needs"),
    "aggregation": ("__call__",),
    "critic": ("build",),
}


class RunSettings(Component):
    """The run as a whole.

    seed            of everything random: sampled tokens, order of prompts, minibatches
    steps           how many steps to train
    name            what the report calls the run; none: the name of its folder
    threads         processor threads; none: one a core. A small model beside other work is faster with 1
    grace_seconds   how long a step may go on after Ctrl-C or SIGTERM before it is abandoned
    """

    seed: int = 0
    steps: int = Field(default=100, ge=1)
    name: str | None = None
    threads: int | None = Field(default=None, ge=1)
    grace_seconds: float = Field(default=30.0, ge=0)


class EntropyBonus(Component):
    """A reward for undecidedness, in the loss.

    coef   what the entropy of each token's distribution is multiplied by; 0: no bonus
    """

    coef: float = 0.0


class FilterSettings(Component):
    """Which completions are trained on.

    mask_truncated   leave completions that ran into `rollout.max_new_tokens` out of the loss (their rewards still
                     count in the group's statistics)
    """

    mask_truncated: bool = False


class CheckpointSettings(Component):
    """What a killed run goes on from.

    every   steps between checkpoints; 0: only when the run ends or is stopped
    keep    how many to keep
    """

    every: int = Field(default=20, ge=0)
    keep: int = Field(default=2, ge=1)


class EvalSettings(Component):
    """Judging the policy on held-out prompts while it trains: greedily, and by samples where asked for.

    every   steps between evaluations; 0: none
    limit   use the first so many held-out prompts; none: all
    n       sampled completions a prompt, for pass@k and maj@k; 0: greedy only
    """

    every: int = Field(default=0, ge=0)
    limit: int | None = Field(default=None, ge=1)
    n: int = Field(default=0, ge=0)


class RunConfig(Component):
    """All settings of a run. Sections are components; `rewards` is a tuple of them, in the order of the file."""

    run: RunSettings = RunSettings()
    model: ModelConfig = ModelConfig()
    data: SerializeAsAny[DataSettings] = Jsonl()
    rollout: Sampling = Sampling.model_validate({})
    rewards: tuple[SerializeAsAny[RewardSettings], ...] = ()
    advantage: Annotated[Advantage, SkipValidation] = GroupAdvantage()
    objective: Annotated[Objective, SkipValidation] = Clipped()
    kl: KLPenalty = KLPenalty()
    reference: ReferenceSettings = ReferenceSettings()
    entropy: EntropyBonus = EntropyBonus()
    aggregation: Annotated[Aggregation, SkipValidation] = TokenMean()
    filter: FilterSettings = FilterSettings()
    learner: LearnerConfig = LearnerConfig()
    critic: Annotated[Critic, SkipValidation] = NoCritic()
    checkpoint: CheckpointSettings = CheckpointSettings()
    eval: EvalSettings = EvalSettings()

    @property
    def token_weights(self) -> Aggregation:
        """The aggregation, complete: a `max_length` that was left out is `rollout.max_new_tokens`."""
        if isinstance(self.aggregation, SeqMeanTokenSumNorm) and self.aggregation.max_length is None:
            return SeqMeanTokenSumNorm(max_length=self.rollout.max_new_tokens)
        return self.aggregation

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates of one step: passes times minibatches."""
        return self.learner.passes * self.learner.minibatches

    @property
    def completions_per_step(self) -> int:
        """Completions sampled in one step."""
        return self.data.prompts_per_step * self.rollout.group_size


@dataclass(frozen=True)
class Section:
    """The components that a section of the file may be, by kind. `default` is the kind meant when `kind` is left out.

    Without a `default` there is one component and nothing to choose: `kind` is no key of the section.
    """

    kinds: Mapping[str, type[Component]]
    default: str | None = None


def _fixed(cls: type[Component]) -> Section:
    return Section({cls.__name__: cls})


SECTIONS: dict[str, Section] = {
    "run": _fixed(RunSettings),
    "model": _fixed(ModelConfig),
    "data": Section(DATA_KINDS, "jsonl"),
    "rollout": _fixed(Sampling),
    "advantage": Section(ADVANTAGE_KINDS, "grpo"),
    "objective": Section(OBJECTIVE_KINDS, "clipped"),
    "kl": _fixed(KLPenalty),
    "reference": _fixed(ReferenceSettings),
    "entropy": _fixed(EntropyBonus),
    "aggregation": Section(AGGREGATION_KINDS, "token-mean"),
    "filter": _fixed(FilterSettings),
    "learner": _fixed(LearnerConfig),
    "critic": Section(CRITIC_KINDS, "none"),
    "checkpoint": _fixed(CheckpointSettings),
    "eval": _fixed(EvalSettings),
}


def build_config(tables: Mapping[str, Any], base: Path | None = None) -> RunConfig:
    """The configuration that nested tables describe; sections left out have their defaults.

    Raises ConfigError with a line for everything that is wrong, in all sections, so that one look mends it all.
    """
    built: dict[str, Any] = {}
    problems: list[str] = []
    for name, table in tables.items():
        try:
            _refuse_lost_objects(name, table)
            built[name] = _build_section(name, table, base)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return validated(RunConfig, built, "")


def _build_section(name: str, table: Any, base: Path | None) -> Component | tuple[Component, ...]:
    if name == "rewards":
        return _build_rewards(table, base)
    if name not in SECTIONS:
        raise ConfigError(f"{name}: {_unknown_section(name)}")
    section = SECTIONS[name]
    if isinstance(table, Mapping) and "kind" in table and section.default is None:
        raise ConfigError(f"{name}.kind: unknown key; there is only one kind of [{name}]")
    component = build(table, section.kinds, name, section.default, base)
    lacking = [promise for promise in PROMISES.get(name, ()) if not hasattr(component, promise)]
    if lacking:
        raise ConfigError(f"{name}.kind: {type(component).__name__} lacks {' and '.join(lacking)}, so it is no {name}")
    return component


def _build_rewards(table: Any, base: Path | None) -> tuple[Component, ...]:
    if isinstance(table, (str, Mapping)) or not isinstance(table, Sequence):
        raise ConfigError("rewards: expected a list of tables; write each as [[rewards]], with two brackets")
    return tuple(
        build(item, REWARD_KINDS, f"rewards.{index}", kind_meant(item), base) for index, item in enumerate(table)
    )


def _refuse_lost_objects(name: str, table: Any) -> None:
    for part in table if isinstance(table, list) else [table]:
        for key, value in part.items() if isinstance(part, Mapping) else ():
            if isinstance(value, str) and value.startswith(IN_MEMORY):
                what = value.removeprefix(IN_MEMORY)
                raise ConfigError(
                    f"{name}.{key}: {what} was an object in Python, which no file can hold; give it again "
                    f"(oncurve.resume from Python), or put it in a file and write "
                    f"{'path' if key == 'function' else key} = 'file.py:{what}' in the place of this line"
                )


def _unknown_section(name: str) -> str:
    owners = [
        f"{owner}.{name}"
        for owner, section in SECTIONS.items()
        for cls in section.kinds.values()
        if name in cls.model_fields
    ]
    if owners:
        return f"a setting stands in its section; did you mean {' or '.join(dict.fromkeys(owners))}?"
    names = [*SECTIONS, "rewards"]
    return "unknown section" + (suggest(name, names) or f"; the sections are: {', '.join(names)}")
