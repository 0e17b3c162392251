"""The parts of the trainer's loop that come from settings alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oncurve.config import RunConfig
from oncurve.data import Demonstrations, PassRateOrder, PromptOrder, Prompts
from oncurve.evaluate import part_is_1
from oncurve.rewards import RewardSet, verifier_of
from oncurve.rollout import RolloutEngine
from oncurve.trainer import (
    Credit,
    DemonstratedGroups,
    DynamicSampling,
    EntropyControl,
    Groups,
    HeldOut,
    KLControl,
    LaggedGroups,
    OldPolicy,
    TrainerConfig,
)
from oncurve.types import Score


def trainer_config(config: RunConfig, environment: Mapping[str, object] | None = None) -> TrainerConfig:
    """Return the loop's own numbers, from the sections they stand in."""
    return TrainerConfig(
        steps=config.run.steps,
        seed=config.run.seed,
        ppo_epochs=config.learner.ppo_epochs,
        minibatches=config.learner.minibatches,
        target_kl=config.learner.target_kl,
        old_policy=OldPolicy(
            single=config.updates_per_step == 1,
            recorded=config.old_logprobs == "rollout",
            correction=config.correction,
            top_entropy=config.filter.top_entropy,
        ),
        mask_truncated=config.filter.mask_truncated,
        checkpoint_every=config.checkpoint.every,
        held_out=HeldOut(config.eval.every, config.eval.at_start, config.checkpoint.best, config.eval.patience),
        grace_seconds=config.run.grace_seconds,
        max_minutes=config.run.max_minutes,
        environment=environment or {},
    )


def dynamic_sampling(config: RunConfig) -> DynamicSampling | None:
    """Return which groups a step trains on, by the verifier where there is one; None: on all that are usable."""
    settings = config.filter
    if not settings.dynamic_sampling:
        return None
    return DynamicSampling(settings.max_rounds, _correct(config), settings.mask_truncated)


def _correct(config: RunConfig) -> Callable[[Score], bool | None] | None:
    verifier = verifier_of(config.rewards, config.eval.verifier)
    return None if verifier is None else part_is_1(verifier)


def credit_of(config: RunConfig) -> Credit:
    """Return the components that make of rewards a weight and an advantage per token."""
    return Credit(config.advantage, config.loss_weights, KLControl(config.kl), EntropyControl(config.entropy))


def order_of(config: RunConfig, prompts: Prompts) -> PromptOrder:
    """Return the order in which a run takes its prompts."""
    if config.data.curriculum == "pass_rate":
        return PassRateOrder(prompts, config.run.seed, prompts.rows.numbers)
    return PromptOrder(prompts, config.run.seed, config.data.shuffle, prompts.mixture)


def groups_of(
    config: RunConfig,
    engine: RolloutEngine,
    rewards: RewardSet,
    prompts: Prompts,
    demonstrations: Demonstrations | None = None,
) -> Groups:
    """Return the source of groups, ahead of their step where other processes sample; `demonstrations` are groups of
    their own.
    """
    if demonstrations is not None:
        order = PromptOrder(demonstrations, config.run.seed, config.data.shuffle)
        return DemonstratedGroups(
            engine, rewards, order, config.data.prompts_per_step, 1, complete=demonstrations.completion
        )
    cluster, least = config.cluster.facts, config.advantage.min_valid_completions
    size, dynamic = config.rollout.group_size, dynamic_sampling(config)
    right = _correct(config) if config.data.curriculum == "pass_rate" else None
    given = (engine, rewards, order_of(config, prompts), config.data.prompts_per_step, size, least, dynamic, right)
    if not cluster.lag:
        return Groups(*given)
    return LaggedGroups(*given, lag=cluster.lag, ahead=cluster.workers > 0, steps=config.run.steps)
