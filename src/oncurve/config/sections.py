"""The whole configuration of a run: one frozen object, a section a field, depth 2.

The class defaults are the vetted setting (the preset `grpo`). Where a section has a choice of components, `kind`
chooses one; `RUN` has the table of those choices. `oncurve.config.rules` checks what goes with what.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializeAsAny, SkipValidation, model_validator
from torch import Tensor

from oncurve.advantages import ADVANTAGE_KINDS, DemonstrationAdvantage, GroupAdvantage, check_advantage, needs_of
from oncurve.base.paths import path_component
from oncurve.cluster import CLUSTER_KINDS, Cluster, check_cluster, cluster_meant
from oncurve.components import Component, check_of, kind_of
from oncurve.config.schema import Schema, Section
from oncurve.config.warm_start import SftSettings
from oncurve.data import DATA_KINDS, DataSettings, Files, check_data
from oncurve.environments import ENVIRONMENT_KINDS, EnvironmentSettings, NoEnvironment, environment_meant
from oncurve.learner import (
    CRITIC_KINDS,
    LEARNER_KINDS,
    Critic,
    LearnerConfig,
    LearnerSettings,
    NoCritic,
    ReferenceSettings,
    check_critic,
    check_learner_settings,
)
from oncurve.losses import (
    AGGREGATION_KINDS,
    CORRECTION_KINDS,
    OBJECTIVE_KINDS,
    Aggregation,
    Clipped,
    Correction,
    EntropyBonus,
    KLPenalty,
    NoCorrection,
    Objective,
    PolicyAndApart,
    Regularizer,
    Reinforce,
    TokenMean,
    WithoutOffPolicy,
    check_aggregation,
    check_correction,
    check_objective,
    corrects_for_sampler,
    resolved,
)
from oncurve.models.adapters import LoraSettings
from oncurve.models.loading import ModelConfig
from oncurve.reward_models import REWARD_MODEL_KINDS, IterativeSettings, NoRewardModel, RewardModelSettings
from oncurve.rewards import EnvironmentReward, RewardSettings
from oncurve.rollout import ENGINE_KINDS, EngineConfig, LocalEngine, Sampling
from oncurve.tracking import TrackingSettings
from oncurve.trainer import Advantage, RolloutsSettings
from oncurve.types import TokenWeights, TrainBatch


class RunSettings(Component):
    """The run as a whole."""

    seed: int = 0
    """Seed of everything random: sampled tokens, order of prompts, minibatches."""

    steps: int = Field(default=100, ge=1, le=10**9)
    """How many steps to train."""

    epochs: float | None = Field(default=None, gt=0, le=1e6)
    """In place of `steps`: how often to go through the training rows. The steps are epochs · rows / prompts_per_step,
    rounded up, with rows that are dropped left out; the run's resolved file holds them. With `filter.dynamic_sampling`
    a step draws more prompts, and the rows are gone through more often."""

    name: Annotated[str, AfterValidator(path_component)] | None = None
    """What the report calls the run; none: the name of its folder."""

    threads: int | None = Field(default=None, ge=1, le=1024)
    """Processor threads; none: one per core. A small model on a busy machine is faster with 1. The last bits of every
    result depend on this number."""

    grace_seconds: float = Field(default=30.0, ge=0, le=1e6)
    """How long a step may go on after Ctrl-C, SIGTERM or SIGHUP before it is abandoned."""

    max_minutes: float | None = Field(default=None, gt=0, le=1e7)
    """Stop in order, with a checkpoint, before a step that would end later than this many minutes after training began
    or was resumed, if it took as long as the longest did. The exit code is 143, as after SIGTERM; none: no limit."""


class FilterSettings(Component):
    """The choice of groups, completions and tokens that are trained on."""

    dynamic_sampling: bool = False
    """Train only on groups that have right and wrong completions, by `eval.verifier` or the only checker of
    answers, whatever the reward; where there is no verifier, or it does not apply, on groups whose rewards differ.
    A step samples further prompts until it has `data.prompts_per_step` such groups; those beyond that wait for the
    next step."""

    max_rounds: int = Field(default=10, ge=1, le=10**4)
    """With `dynamic_sampling`, how many times a step may sample `data.prompts_per_step` prompts. After that it trains
    on the groups that it has; without any the run ends."""

    mask_truncated: bool = False
    """Leave completions that reached `rollout.max_new_tokens` out of the loss. Their rewards still count in the group's
    statistics."""

    off_policy_threshold: float | None = Field(default=None, gt=0)
    """δ in nats per token: the objective leaves out tokens with a negative advantage of completions whose mean of
    log μ - log π_θ is above it, with μ the sampler's policy and π_θ that of the update. KL and entropy terms still
    count them. None: off."""

    top_entropy: float = Field(default=1.0, gt=0, le=1)
    """The share of a step's trained tokens that the objective counts: those of the highest entropy before the step's
    first update. KL and entropy terms count all; 1: the objective does, too. Below 1 every step has one more forward
    pass, unless it recomputes old log-probs anyway."""

    @property
    def keeps_surplus(self) -> bool:
        """Return whether groups may wait for the next step: a single round never has more than a step takes."""
        return self.dynamic_sampling and self.max_rounds > 1


class CheckpointSettings(Component):
    """Checkpoints, from which a stopped or killed run resumes."""

    every: int = Field(default=20, ge=0, le=10**9)
    """Steps between checkpoints; 0: only when the run ends or is stopped."""

    keep: int = Field(default=2, ge=1, le=10**9)
    """How many checkpoints to keep."""


class RunCheckpointSettings(CheckpointSettings):
    """Checkpoints, from which a stopped or killed run resumes, and of which one may be the best."""

    best: str | None = None
    """The held-out metric, like "eval/accuracy", whose best checkpoint stays in addition to `keep`; more is better. A
    step must be better than all before it, and than the evaluation before training. `oncurve export DIR --step best`
    writes its policy; none: no checkpoint is the best."""


class EvalSettings(Component):
    """Evaluation of the policy on held-out prompts during training: greedy, and optionally by samples."""

    every: int = Field(default=0, ge=0, le=10**9)
    """Steps between evaluations; 0: none."""

    at_start: bool = True
    """Evaluate before step 1, too; it is step 0 in `metrics.jsonl`."""

    patience: int = Field(default=0, ge=0, le=10**9)
    """End the run after this many evaluations in a row in which `checkpoint.best` has not been better than before, the
    evaluation before training included; 0: never."""

    limit: int | None = Field(default=None, ge=1)
    """Use only this many held-out prompts, the first ones; none: all."""

    n: int = Field(default=0, ge=0, le=10**5)
    """Sampled completions per prompt, for pass@k and maj@k; 0: greedy only."""

    temperature: float | None = Field(default=None, gt=0)
    """The temperature of those samples; none: `rollout.temperature`. Greedy completions have none."""

    max_new_tokens: int | None = Field(default=None, ge=1, le=10**7)
    """The longest completion in an evaluation; none: `rollout.max_new_tokens`."""

    verifier: str | None = None
    """The name of the reward whose value 1 says that a completion is right, whatever its weight (which may be 0).
    Evaluation uses it alone, and iterations train the reward model on it. None: the only checker of answers among the
    rewards (exact, numeric, math, task), else the only reward with a weight above 0; where that leaves several or none,
    accuracy, pass@k and maj@k are not reported."""


class RunConfig(Component):
    """All settings of a run. Sections are components; `rewards` is a tuple of them, in the order of the file."""

    run: RunSettings = RunSettings()
    model: ModelConfig = ModelConfig()
    lora: LoraSettings = LoraSettings()
    data: SerializeAsAny[DataSettings] = Files()
    rollout: Sampling = Sampling.model_validate({})
    engine: Annotated[EngineConfig, SkipValidation] = LocalEngine()
    environment: SerializeAsAny[EnvironmentSettings | NoEnvironment] = NoEnvironment()
    rewards: tuple[SerializeAsAny[RewardSettings], ...] = ()
    advantage: Annotated[Advantage, SkipValidation] = GroupAdvantage()
    objective: Annotated[Objective, SkipValidation] = Clipped()
    kl: KLPenalty = KLPenalty()
    reference: ReferenceSettings = ReferenceSettings()
    entropy: EntropyBonus = EntropyBonus()
    aggregation: Annotated[Aggregation, SkipValidation] = TokenMean()
    filter: FilterSettings = FilterSettings()
    correction: Annotated[Correction, SkipValidation] = NoCorrection()
    learner: SerializeAsAny[LearnerSettings] = LearnerConfig()
    critic: Annotated[Critic, SkipValidation] = NoCritic()
    cluster: Annotated[Cluster, SkipValidation] = Cluster()
    reward_model: SerializeAsAny[RewardModelSettings | NoRewardModel] = NoRewardModel()
    iterative: IterativeSettings = IterativeSettings()
    sft: SftSettings = SftSettings()
    checkpoint: RunCheckpointSettings = RunCheckpointSettings()
    rollouts: RolloutsSettings = RolloutsSettings()
    eval: EvalSettings = EvalSettings()
    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="before")
    @classmethod
    def _with_environment_reward(cls, values: Any) -> Any:
        """Add the environment's own reward, weight 1, where none of the rewards is that."""
        environment, rewards = values.get("environment", NoEnvironment()), tuple(values.get("rewards", ()))
        data: Any = values.get("data")
        if environment.present and data is not None:
            values = {**values, "data": data.for_episodes()}
        if not environment.present or not environment.scores or any(reward.scores_turns for reward in rewards):
            return values
        return {**values, "rewards": (*rewards, EnvironmentReward(name=environment.title))}

    @property
    def token_weights(self) -> Aggregation:
        """The aggregation, with the constants that it takes from other sections."""
        return resolved(self.aggregation, self)

    @property
    def apart_weights(self) -> Aggregation | None:
        """The aggregation of the KL term or the bonus, complete as `token_weights` is; None: none of its own counts."""
        kl = self.kl.aggregation if self.kl.loss_coef else None
        name = kl or (self.entropy.aggregation if self.regularizer.rewards_entropy else None)
        if name is None:
            return None
        if self.aggregation_kind == name:
            return self.token_weights
        made: Any = AGGREGATION_KINDS[name]()
        return resolved(made, self)

    @property
    def policy_term(self) -> Objective:
        """The objective, less what `filter.off_policy_threshold` leaves out."""
        threshold = self.filter.off_policy_threshold
        return self.objective if threshold is None else WithoutOffPolicy(self.objective, threshold)

    @property
    def aggregation_kind(self) -> str:
        """The kind of the aggregation: a name of `AGGREGATION_KINDS`, or a path."""
        return kind_of(self.aggregation, AGGREGATION_KINDS)

    @property
    def own_reward_model(self) -> RewardModelSettings | None:
        """The settings of the run's own reward model; None: it has none."""
        return None if self.reward_model.head is None else self.reward_model

    @property
    def fitted_rewards(self) -> tuple[RewardSettings, ...]:
        """The rewards, with the constants that they take from other sections."""
        return tuple(reward.for_lengths(self.rollout.max_new_tokens) for reward in self.rewards)

    @property
    def regularizer(self) -> Regularizer:
        """Return what is added to the objective's loss: KL and entropy."""
        steered, apart = self.entropy.target is not None, self.entropy.aggregation is not None
        return Regularizer(self.kl, self.entropy.coef, steered=steered, entropy_apart=apart)

    @property
    def loss_weights(self) -> Callable[[TrainBatch], Tensor | TokenWeights]:
        """The weights of an update's losses: the aggregation, and that of terms with their own."""
        apart = self.apart_weights
        return self.token_weights if apart is None else PolicyAndApart(self.token_weights, apart)

    @property
    def old_logprobs(self) -> str:
        """`learner.old_logprobs`; "rollout" where the objective's ratio is to the sampler's recorded log-probs."""
        return "rollout" if corrects_for_sampler(self.objective) else self.learner.old_logprobs

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates of one step: passes times minibatches."""
        return self.learner.ppo_epochs * self.learner.minibatches

    def over(self, rows: int) -> RunConfig:
        """Return this configuration, with the number of steps in place of `run.epochs`, over so many training rows."""
        if self.run.epochs is None:
            return self
        steps = math.ceil(round(self.run.epochs * rows / self.data.prompts_per_step, 9))  # 0.1 · 30 is above 3
        return self.model_copy(update={"run": self.run.model_copy(update={"steps": steps, "epochs": None})})

    @property
    def demonstrates(self) -> bool:
        """Return whether the run trains on the demonstrations of `[sft]`, and samples in evaluations alone."""
        return "demonstrations" in needs_of(self.advantage)

    @property
    def warm_starts(self) -> bool:
        """Return whether the stage of `[sft]` comes before step 1."""
        return self.sft.present and not self.demonstrates

    @property
    def stage(self) -> RunConfig:
        """Return the configuration of the warm start: a run on the demonstrations, at temperature 1.

        It keeps model, adapter, optimizer, cluster, checkpoints, evaluation and trackers; all of its steps are made.
        """
        sft, defaults = self.sft, RunConfig()
        changes: dict[str, dict[str, Any]] = {
            "run": {"steps": sft.steps or 1, "epochs": None if sft.steps else sft.epochs},
            "data": {"prompts_per_step": sft.batch_size},
            "rollout": {"group_size": 1},
            "kl": {"coef": 0.0},
            "learner": {"learning_rate": sft.learning_rate, "ppo_epochs": 1, "minibatches": 1, "target_kl": None},
            "checkpoint": {"best": None},
            "eval": {"patience": 0},
        }
        changed = {name: getattr(self, name).model_copy(update=update) for name, update in changes.items()}
        others = ("reference", "entropy", "aggregation", "filter", "correction", "critic", "reward_model", "iterative")
        changed |= {name: getattr(defaults, name) for name in others}
        return self.model_copy(update=changed | {"advantage": DemonstrationAdvantage(), "objective": Reinforce()})

    @property
    def trains_older(self) -> bool:
        """Return whether steps train on completions by older weights than those that they begin with."""
        return self.filter.keeps_surplus or self.cluster.facts.lag > 0

    @property
    def exact_rollout(self) -> bool:
        """Return whether recorded log-probs are those of the weights that sampled, whatever process did."""
        return self.engine.exact and not self.cluster.facts.served

    @property
    def stays_at_1(self) -> bool:
        """Return whether the importance ratio is 1 in every update, so that clipping cannot bind: there is one per
        rollout, and it trains on what an exact engine has just sampled.
        """
        return self.updates_per_step == 1 and self.exact_rollout and not self.trains_older

    @property
    def following(self) -> ReferenceSettings:
        """Return how the reference follows the policy: a copy of it in every iteration, or as `[reference]` says."""
        steps = self.iterative.steps
        return ReferenceSettings(every=steps, mixup_alpha=1.0) if steps else self.reference

    @property
    def longest_completion(self) -> int:
        """Tokens of the longest completion that is sampled, in training or in an evaluation."""
        return max(self.rollout.max_new_tokens, (self.eval.max_new_tokens or 0) if self.eval.every else 0)

    @property
    def completions_per_step(self) -> int:
        """Completions sampled in one step."""
        return self.data.prompts_per_step * self.rollout.group_size


RUN = Schema(
    RunConfig,
    {
        "data": Section(DATA_KINDS, "files", check_data),
        "environment": Section(ENVIRONMENT_KINDS, "none", meant=environment_meant, path_kind="tools"),
        "engine": Section(
            ENGINE_KINDS, "local", check_of("engine", ("build", "exact"), ("exact", "records_kept_sets"))
        ),
        "advantage": Section(ADVANTAGE_KINDS, "grpo", check_advantage),
        "objective": Section(OBJECTIVE_KINDS, "clipped", check_objective),
        "aggregation": Section(AGGREGATION_KINDS, "token-mean", check_aggregation),
        "correction": Section(CORRECTION_KINDS, "none", check_correction),
        "learner": Section(LEARNER_KINDS, "local", check_learner_settings),
        "critic": Section(CRITIC_KINDS, "none", check_critic),
        "cluster": Section(CLUSTER_KINDS, "none", check_cluster, cluster_meant),
        "reward_model": Section(REWARD_MODEL_KINDS, "none"),
    },
)
"""The recipe of a run."""

SECTIONS = RUN.sections
