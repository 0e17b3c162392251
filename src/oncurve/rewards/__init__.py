"""Rewards: what a completion is worth.

`RewardSet.build(tables)` makes the rewards of a run, `score(groups)` gives every completion a `Score`. User functions
and slow checkers run in killable workers; what goes wrong is masked, raised or valued as `on_error` says, and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncurve.rewards.math import Math
from oncurve.rewards.model import ModelReward, ProcessModelReward
from oncurve.rewards.python import Python
from oncurve.rewards.settings import RewardSettings
from oncurve.rewards.verify import Exact, Numeric, Regex, Task, TaskSteps

if TYPE_CHECKING:
    from oncurve.rewards.rewardset import RewardSet

__all__ = [
    "REWARD_KINDS",
    "Exact",
    "Math",
    "ModelReward",
    "Numeric",
    "ProcessModelReward",
    "Python",
    "Regex",
    "RewardSet",
    "RewardSettings",
    "Task",
    "TaskSteps",
]

REWARD_KINDS: dict[str, type[RewardSettings]] = {
    "python": Python,
    "exact": Exact,
    "numeric": Numeric,
    "math": Math,
    "regex": Regex,
    "task": Task,
    "task_steps": TaskSteps,
    "model": ModelReward,
    "process_model": ProcessModelReward,
}


def __getattr__(name: str) -> Any:
    """`RewardSet` on first use: it knows the batch types and with them torch, which workers must not import."""
    if name == "RewardSet":
        from oncurve.rewards.rewardset import RewardSet

        return RewardSet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
