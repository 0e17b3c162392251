"""The cosine-scaled length reward: an answer's correctness, by an amount that depends on the completion's length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from oncurve.base.errors import ConfigError
from oncurve.components import Impossible
from oncurve.rewards.accepts import Accepts
from oncurve.rewards.functions.math import Checker, Math
from oncurve.rewards.settings import Runner


def cosine_scaled(length: int, max_length: int, shortest: float, longest: float) -> float:
    """Return half a cosine from `shortest` at length 0 to `longest` at `max_length`, and `longest` beyond.

        longest + (shortest - longest) / 2 · (1 + cos(π · min(length / max_length, 1)))

    Example: halfway, of 0 and 1, 0.5.
    """
    progress = min(length / max_length, 1.0)
    return longest + 0.5 * (shortest - longest) * (1.0 + math.cos(math.pi * progress))


class Cosine(Math):
    """By the completion's length: the reward of a correct answer falls with it, that of a wrong one rises.

    With L = `max_length` and |o| the completion's tokens, along half a cosine from |o| = 0 to L (`cosine_scaled`):

        correct    max_value_correct → min_value_correct
        wrong      min_value_wrong   → max_value_wrong

    Correct is what the kind `math` gives 1; None (does not apply) where the answer column holds nothing mathematical.
    The value 1 does not mean right, so it is never the verifier: add `kind = "math"` with weight 0 for accuracies.
    Source: Yeo et al., arXiv:2502.03373, appendix C.1, as TRL's `get_cosine_scaled_reward`, with its names. Example: at
    half of L, with the defaults, a correct completion has 0.75 and a wrong one -0.75.
    """

    verifies: ClassVar[bool | None] = False

    max_length: int | None = Field(default=None, gt=0, le=10**7)
    """The length L in tokens at which both curves end; none: `rollout.max_new_tokens`."""

    min_value_wrong: float = -1.0
    """The value of a wrong completion of length 0."""

    max_value_wrong: float = -0.5
    """The value of a wrong completion of length L and more."""

    min_value_correct: float = 0.5
    """The value of a correct completion of length L and more."""

    max_value_correct: float = 1.0
    """The value of a correct completion of length 0."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda reward: reward.min_value_wrong > reward.max_value_wrong,
            "min_value_wrong: it is the value of the shortest wrong completion, and above max_value_wrong, that of the "
            "longest; lower it",
        ),
        Impossible(
            lambda reward: reward.min_value_correct > reward.max_value_correct,
            "min_value_correct: it is the value of the longest correct completion, and above max_value_correct, that "
            "of the shortest; lower it",
        ),
        Impossible(
            lambda reward: reward.max_value_wrong >= reward.min_value_correct,
            "max_value_wrong: a long wrong completion would have as much as a long correct one; set it below "
            "min_value_correct",
        ),
    )

    @property
    def below_zero(self) -> bool:
        """Return whether the values of wrong completions are below 0."""
        return self.min_value_wrong < 0

    def for_lengths(self, longest: int) -> Cosine:
        """With `longest` in the place of a `max_length` that was left out."""
        return self.model_copy(update={"max_length": self.max_length or longest})

    def start(self, base: Path | None) -> Runner:
        """Run in workers, as `math` does. Raises ConfigError without a `max_length`."""
        if self.max_length is None:
            raise ConfigError("max_length is missing, the length in tokens at which both curves end")
        curves = [(self.min_value_wrong, self.max_value_wrong), (self.max_value_correct, self.min_value_correct)]
        settings = {"answer": self.answer, "after": self.after, "max_length": self.max_length, "curves": curves}
        return self.workers(f"{__name__}:ScaledChecker", settings)


class ScaledChecker(Checker):
    """The worker's side of `Cosine`.

    curves   of wrong completions and of correct ones: the values at length 0 and at `max_length`
    """

    def __init__(self, answer: str, after: str | None, max_length: int, curves: Sequence[Sequence[float]]) -> None:
        super().__init__(answer, after)
        self.about = Accepts(needs=(("completion",), (answer,), ("completion_ids",))).as_json()
        self._max_length, self._curves = max_length, curves

    def __call__(self, item: Mapping[str, Any]) -> float | None:
        """Return the value of `{"completion": text, <answer>: text or number, "completion_ids": tokens}`, or None."""
        right = super().__call__(item)
        if right is None:
            return None
        return cosine_scaled(len(item["completion_ids"]), self._max_length, *self._curves[int(right)])
