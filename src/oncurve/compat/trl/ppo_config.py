"""`PPOConfig`: the arguments of `PPOTrainer`, by TRL's names and with its defaults."""

from __future__ import annotations

from oncurve.compat.trl.config import TableConfig
from oncurve.compat.trl.fields import of_keys
from oncurve.compat.trl.ppo_dialect import DIALECT, PPO_CONFIG_KEYS, PPO_OLDER_KEYS

PPO_FIELDS = {key.theirs: key for key in (*PPO_CONFIG_KEYS, *PPO_OLDER_KEYS)}


@of_keys(PPO_CONFIG_KEYS)
class PPOConfig(TableConfig):
    """The settings of `PPOTrainer`: `PPOConfig("out", total_episodes=10000, kl_coef=0.05)`."""

    dialect = DIALECT
    keys = PPO_FIELDS
