"""verl's settings as a table: `DIALECT`, put together from its parts."""

from __future__ import annotations

from oncurve.compat.dialect import Dialect
from oncurve.compat.verl import actor, algorithm, critic, data, idle, reward, rollout, trainer

VERSION = "0.9"
"""The version of verl whose `ppo_trainer.yaml` the table has, next to names of older ones."""

DIALECT = Dialect(
    "verl",
    VERSION,
    (
        *algorithm.KEYS,
        *actor.KEYS,
        *data.KEYS,
        *rollout.KEYS,
        *critic.KEYS,
        *reward.KEYS,
        *trainer.KEYS,
        *idle.KEYS,
    ),
)

OPEN = (
    "data.apply_chat_template_kwargs",
    "actor_rollout_ref.model.override_config",
    "custom_reward_function.reward_kwargs",
    "reward.custom_reward_function.reward_kwargs",
)
"""Settings that are tables with free names: `custom_reward_function.reward_kwargs.limit=3` is a part of one."""
