"""verl's settings as a table: `DIALECT`, put together from the TOML files next to this module."""

from __future__ import annotations

from pathlib import Path

from oncurve.compat.dialect import Dialect
from oncurve.compat.tables import keys_of
from oncurve.compat.verl import algorithm, reward, run

VERSION = "0.9"
"""The version of verl whose `ppo_trainer.yaml` the table has, next to names of older ones."""

HERE = Path(__file__).parent
FILES = ("algorithm", "actor", "data", "rollout", "critic", "reward", "trainer", "unused")
FUNCTIONS = vars(algorithm) | vars(run) | vars(reward)
DIALECT = Dialect("verl", VERSION, tuple(key for name in FILES for key in keys_of(HERE / f"{name}.toml", FUNCTIONS)))

OPEN = (
    "data.apply_chat_template_kwargs",
    "actor_rollout_ref.model.override_config",
    "custom_reward_function.reward_kwargs",
    "reward.custom_reward_function.reward_kwargs",
)
"""Settings that are tables with free names: `custom_reward_function.reward_kwargs.limit=3` is a part of one."""

ABOUT = (HERE / "about.md").read_text(encoding="utf-8") + "\n".join(reward.checker_rows())
"""The text of the page "Coming from another tool" before the table of settings."""
