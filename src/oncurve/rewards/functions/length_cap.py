"""A fixed punishment of completions above a length, a reward that shapes others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from oncurve.base.errors import ConfigError
from oncurve.rewards.accepts import Accepts
from oncurve.rewards.settings import InProcess, RewardSettings, Runner


class LengthCap(RewardSettings):
    """0 up to `max_length` tokens, and `penalty` for every completion that is longer.

    All tokens of a completion count, its ending token included. The step has no slope: near the cap `overlong`, whose
    punishment grows within a buffer, tells the policy more. It is never the verifier. Example: with `max_length = 100`
    a completion of 100 tokens has 0, of 101 tokens -1.
    """

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = False
    shapes: ClassVar[bool] = True
    default: ClassVar[str | None] = "length_cap"

    max_length: int = Field(gt=0, le=10**7)
    """The largest number of tokens without a punishment."""

    penalty: float = Field(default=-1.0, lt=0)
    """The value of a longer completion."""

    def for_lengths(self, longest: int) -> LengthCap:
        """Return this reward. Raises ConfigError: no completion can be longer than `max_length`."""
        if self.max_length >= longest:
            raise ConfigError(
                f"max_length: nothing is punished: completions have at most {longest} tokens (rollout.max_new_tokens); "
                f"set it below {longest}"
            )
        return self

    def start(self, base: Path | None) -> Runner:
        """Run in this process; no user code is involved."""
        return InProcess(self._item, Accepts(needs=(("completion_ids",),)))

    def _item(self, item: Mapping[str, Any]) -> float:
        return self(len(item["completion_ids"]))

    def __call__(self, length: int) -> float:
        """Return the punishment of a completion of `length` tokens: 0 or `penalty`."""
        return self.penalty if length > self.max_length else 0.0
