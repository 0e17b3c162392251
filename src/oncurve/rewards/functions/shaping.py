"""Rewards that shape others by the length or the repetitions of a completion, and are never the verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from oncurve.base.errors import ConfigError
from oncurve.rewards.settings import Local, Runner


class Shaping(Local):
    """A reward that only shapes others, by the form or the length of a completion."""

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = False
    shapes: ClassVar[bool] = True


class Overlong(Shaping):
    """0 up to `max_length - buffer` tokens, then falling in a straight line to -1 at `max_length`, and -1 beyond.

        (max_length - buffer - |o|) / buffer    within the buffer

    |o| counts all tokens of a completion, its ending token included. It says nothing about what is right, so it is
    never the verifier. Source: DAPO, arXiv:2503.14476, eq. 13. Example: of at most 100 tokens with a buffer of 20, one
    of 80 has 0, of 85 -0.25, of 90 -0.5, of 100 -1.
    """

    buffer: int = Field(gt=0)
    """The number of tokens before `max_length` within which the punishment grows."""

    max_length: int | None = Field(default=None, gt=0, le=10**7)
    """The length in tokens from which on it is -1; none: `rollout.max_new_tokens`."""

    def for_lengths(self, longest: int) -> Overlong:
        """Return this reward, with `longest` in the place of a `max_length` that was left out.

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
        """Run in this process. Raises ConfigError without a `max_length`."""
        if self.max_length is None:
            raise ConfigError("max_length is missing, the length in tokens from which on a completion has -1")
        return super().start(base)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tokens."""
        return ("completion_ids",)

    def value(self, item: Mapping[str, Any]) -> float:
        """Return the value of an item's tokens."""
        return self(len(item["completion_ids"]))

    def __call__(self, length: int) -> float:
        """Return the punishment of a completion of `length` tokens, in -1..0."""
        assert self.max_length is not None
        return max(-1.0, min(0.0, (self.max_length - self.buffer - length) / self.buffer))


class Repetition(Shaping):
    """0 where no n-gram of a completion's tokens occurs twice, falling to `max_penalty` where all are the same.

        max_penalty · (1 - number of different n-grams / number of n-grams)

    n-grams are runs of `ngram_size` token ids, its ending token included; a completion with fewer tokens has 0. It says
    nothing about what is right, so it is never the verifier. Source: Yeo et al., arXiv:2502.03373, appendix C.2, as
    TRL's `get_repetition_penalty_reward`. Example: of five equal tokens all four 2-grams are one, -(1 - 1/4) = -0.75.
    """

    ngram_size: int = Field(default=3, ge=1, le=10_000)
    """The number of tokens n of an n-gram."""

    max_penalty: float = Field(default=-1.0, lt=0)
    """The value that a completion of nothing but one repeated n-gram approaches."""

    def __call__(self, completion_ids: Sequence[int]) -> float:
        """Return the punishment of a completion of these tokens, in `max_penalty`..0."""
        total = len(completion_ids) - self.ngram_size + 1
        if total < 1:
            return 0.0
        different = len(set(zip(*(completion_ids[start:] for start in range(self.ngram_size)), strict=False)))
        return self.max_penalty * (1 - different / total) if different < total else 0.0
