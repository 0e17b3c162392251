"""The parts of the trainer's loop that come from settings alone."""

from __future__ import annotations

from oncurve.config import RunConfig
from oncurve.evaluate import part_is_1
from oncurve.rewards import verifier_of
from oncurve.trainer import (
    DynamicSampling,
    HeldOut,
    LaggedRollouts,
    OldPolicy,
    Rollouts,
    TrainerConfig,
)


def trainer_config(config: RunConfig) -> TrainerConfig:
    """The loop's own numbers, from the sections they stand in."""
    return TrainerConfig(
        steps=config.run.steps,
        prompts_per_step=config.data.prompts_per_step,
        group_size=config.rollout.group_size,
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
    )


def rollouts_of(config: RunConfig) -> Rollouts:
    """When the groups of a step are collected: ahead of their step where other processes sample."""
    cluster = config.cluster
    return LaggedRollouts(cluster.lag, ahead=cluster.workers > 0) if cluster.lag else Rollouts()


def dynamic_sampling(config: RunConfig) -> DynamicSampling | None:
    """Which groups a step trains on, by the verifier where there is one; None: on all that are usable."""
    settings, verifier = config.filter, verifier_of(config.rewards, config.eval.verifier)
    if not settings.dynamic_sampling:
        return None
    correct = None if verifier is None else part_is_1(verifier)
    return DynamicSampling(settings.max_rounds, correct, settings.mask_truncated)
