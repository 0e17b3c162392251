"""The soft punishment of long completions of DAPO, a reward that shapes others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from oncurve.base.errors import ConfigError
from oncurve.rewards.accepts import Accepts
from oncurve.rewards.settings import InProcess, RewardSettings, Runner


class Overlong(RewardSettings):
    """0 up to `max_length - buffer` tokens, then falling in a straight line to -1 at `max_length`, and -1 beyond.

        (max_length - buffer - |o|) / buffer    within the buffer

    |o| counts all tokens of a completion, its ending token included. It says nothing about what is right, so it is
    never the verifier. Source: DAPO, arXiv:2503.14476, eq. 13. Example: of at most 100 tokens with a buffer of 20, one
    of 80 has 0, of 85 -0.25, of 90 -0.5, of 100 -1.
    """

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = False
    shapes: ClassVar[bool] = True

    buffer: int = Field(gt=0)
    """The number of tokens before `max_length` within which the punishment grows."""

    max_length: int | None = Field(default=None, gt=0, le=10**7)
    """The length in tokens from which on it is -1; none: `rollout.max_new_tokens`."""

    def for_lengths(self, longest: int) -> Overlong:
        """With `longest` in the place of a `max_length` that was left out.

        Raises ConfigError: the buffer is longer than `max_length`, or no completion can reach the punishment.
        """
        most = self.max_length or longest
        if self.buffer > most:
            raise ConfigError(f"buffer: {self.buffer} tokens are more than the {most} of max_length; lower it")
        if most - self.buffer >= longest:
            raise ConfigError(
                f"max_length: nothing is punished: completions have at most {longest} tokens (rollout.max_new_tokens), "
                f"and it begins above {most - self.buffer}; lower max_length, or raise buffer"
            )
        return self.model_copy(update={"max_length": most})

    def start(self, base: Path | None) -> Runner:
        """Run in this process; no user code is involved. Raises ConfigError without a `max_length`."""
        if self.max_length is None:
            raise ConfigError("max_length is missing, the length in tokens from which on a completion has -1")
        return InProcess(self._item, Accepts(needs=(("completion_ids",),)))

    def _item(self, item: Mapping[str, Any]) -> float:
        return self(len(item["completion_ids"]))

    def __call__(self, length: int) -> float:
        """Return the punishment of a completion of `length` tokens, in -1..0."""
        assert self.max_length is not None
        return max(-1.0, min(0.0, (self.max_length - self.buffer - length) / self.buffer))
