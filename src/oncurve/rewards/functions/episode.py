"""The reward that an environment gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from oncurve.rewards.settings import Local


class EnvironmentReward(Local):
    """The environment's own reward: its outcome for the episode plus its rewards of single turns.

    With process supervision each turn's reward stands at the last token that the policy wrote in it, and the outcome at
    the last of all. It does not apply to an episode that got neither.
    """

    default: ClassVar[str | None] = "environment"
    scores_turns: ClassVar[bool] = True

    def __call__(self, episode: Mapping[str, Any]) -> float | None:
        """Return the outcome plus the rewards of the turns, or None where there are none."""
        given = [turn["reward"] for turn in episode["turns"]] + [episode["outcome"]]
        rewards = [reward for reward in given if reward is not None]
        return sum(rewards) if rewards else None
