"""The whole configuration of a run: one frozen object, a section a field, depth 2.

The class defaults are the vetted setting (the preset `grpo`). Where a section has a choice of components, `kind`
chooses one; `SECTIONS` is the table of those choices. What goes with what is checked in `oncurve.run.checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializeAsAny, SkipValidation
from torch import Tensor

from oncurve.advantages import ADVANTAGE_KINDS, GroupAdvantage
from oncurve.data import DATA_KINDS, DataSettings, Jsonl
from oncurve.learner import CRITIC_KINDS, LearnerConfig, ReferenceSettings
from oncurve.learner.critic import Critic, NoCritic
from oncurve.learner.reward_model import REWARD_MODEL_KINDS, NoRewardModel, RewardModelSettings
from oncurve.losses import (
    AGGREGATION_KINDS,
    OBJECTIVE_KINDS,
    Clipped,
    KLPenalty,
    Objective,
    PolicyAndKL,
    SeqMeanTokenSumNorm,
    TokenMean,
)
from oncurve.models.huggingface import ModelConfig
from oncurve.paths import path_component
from oncurve.rewards import RewardSettings
from oncurve.rollout import Sampling
from oncurve.run.schema import Schema, Section, fixed
from oncurve.spec import Component
from oncurve.trainer.iterative import IterativeSettings
from oncurve.trainer.protocols import Advantage
from oncurve.types import TokenWeights, TrainBatch

__all__ = [
    "RUN",
    "SECTIONS",
    "CheckpointSettings",
    "EntropyBonus",
    "EvalSettings",
    "FilterSettings",
    "RunConfig",
    "RunSettings",
]


Aggregation = Callable[[TrainBatch], Tensor]


class RunSettings(Component):
    """The run as a whole.

    seed            of everything random: sampled tokens, order of prompts, minibatches
    steps           how many steps to train
    name            what the report calls the run; none: the name of its folder
    threads         processor threads; none: one a core. A small model beside other work is faster with 1. The last
                    bits of every result depend on it
    grace_seconds   how long a step may go on after Ctrl-C, SIGTERM or SIGHUP before it is abandoned
    """

    seed: int = 0
    steps: int = Field(default=100, ge=1, le=10**9)
    name: Annotated[str, AfterValidator(path_component)] | None = None
    threads: int | None = Field(default=None, ge=1, le=1024)
    grace_seconds: float = Field(default=30.0, ge=0, le=1e6)


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

    every: int = Field(default=20, ge=0, le=10**9)
    keep: int = Field(default=2, ge=1, le=10**9)


class EvalSettings(Component):
    """Judging the policy on held-out prompts while it trains: greedily, and by samples where asked for.

    every   steps between evaluations; 0: none
    limit   use the first so many held-out prompts; none: all
    n       sampled completions a prompt, for pass@k and maj@k; 0: greedy only
    judge   the name of the reward whose value 1 says that a completion is right, whatever its weight (0 perhaps):
            evaluation goes by it alone, and iterations teach it to the reward model; none: the only checker of answers
            among the rewards (exact, numeric, math, task), else the only reward whose weight is above 0; where that
            leaves several or none, accuracy, pass@k and maj@k are not reported
    """

    every: int = Field(default=0, ge=0, le=10**9)
    limit: int | None = Field(default=None, ge=1)
    n: int = Field(default=0, ge=0, le=10**5)
    judge: str | None = None


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
    reward_model: SerializeAsAny[RewardModelSettings | NoRewardModel] = NoRewardModel()
    iterative: IterativeSettings = IterativeSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    eval: EvalSettings = EvalSettings()

    @property
    def token_weights(self) -> Aggregation:
        """The aggregation, complete: a `max_length` that was left out is `rollout.max_new_tokens`."""
        if isinstance(self.aggregation, SeqMeanTokenSumNorm) and self.aggregation.max_length is None:
            return SeqMeanTokenSumNorm(max_length=self.rollout.max_new_tokens)
        return self.aggregation

    @property
    def kl_weights(self) -> Aggregation | None:
        """The KL term's own aggregation, complete as `token_weights` is; None where it has none that counts."""
        name = self.kl.aggregation
        if name is None or not self.kl.loss_coef:
            return None
        kind: Any = AGGREGATION_KINDS[name]
        if type(self.aggregation) is kind:
            return self.token_weights
        length = {"max_length": self.rollout.max_new_tokens}
        made: Aggregation = kind(**{key: value for key, value in length.items() if key in kind.model_fields})
        return made

    @property
    def loss_weights(self) -> Callable[[TrainBatch], Tensor | TokenWeights]:
        """What gives an update's losses their weights: the aggregation, and the KL term's where it has its own."""
        return self.token_weights if self.kl_weights is None else PolicyAndKL(self.token_weights, self.kl_weights)

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates of one step: passes times minibatches."""
        return self.learner.passes * self.learner.minibatches

    @property
    def following(self) -> ReferenceSettings:
        """How the reference follows the policy: anew in every iteration, or as `[reference]` says."""
        steps = self.iterative.steps
        return ReferenceSettings(every=steps, mixup=1.0) if steps else self.reference

    @property
    def completions_per_step(self) -> int:
        """Completions sampled in one step."""
        return self.data.prompts_per_step * self.rollout.group_size


SECTIONS: dict[str, Section] = {
    "run": fixed(RunSettings),
    "model": fixed(ModelConfig),
    "data": Section(DATA_KINDS, "jsonl"),
    "rollout": fixed(Sampling),
    "advantage": Section(ADVANTAGE_KINDS, "grpo"),
    "objective": Section(OBJECTIVE_KINDS, "clipped"),
    "kl": fixed(KLPenalty),
    "reference": fixed(ReferenceSettings),
    "entropy": fixed(EntropyBonus),
    "aggregation": Section(AGGREGATION_KINDS, "token-mean"),
    "filter": fixed(FilterSettings),
    "learner": fixed(LearnerConfig),
    "critic": Section(CRITIC_KINDS, "none"),
    "reward_model": Section(REWARD_MODEL_KINDS, "none"),
    "iterative": fixed(IterativeSettings),
    "checkpoint": fixed(CheckpointSettings),
    "eval": fixed(EvalSettings),
}

RUN = Schema(
    RunConfig,
    SECTIONS,
    promises={
        "advantage": ("__call__", "least_valid"),
        "objective": ("__call__", "needs"),
        "aggregation": ("__call__",),
        "critic": ("build",),
    },
)
"""The recipe of a run."""
