"""The punishment of repeated n-grams, a reward that shapes others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from oncurve.rewards.accepts import Accepts
from oncurve.rewards.settings import InProcess, RewardSettings, Runner


class Repetition(RewardSettings):
    """0 where no n-gram of a completion's tokens occurs twice, falling to `max_penalty` where all are the same.

        max_penalty · (1 - number of different n-grams / number of n-grams)

    n-grams are runs of `ngram_size` token ids, its ending token included; a completion with fewer tokens has 0. It says
    nothing about what is right, so it is never the verifier. Source: Yeo et al., arXiv:2502.03373, appendix C.2, as
    TRL's `get_repetition_penalty_reward`. Example: of five equal tokens all four 2-grams are one, -(1 - 1/4) = -0.75.
    """

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = False
    shapes: ClassVar[bool] = True

    ngram_size: int = Field(default=3, ge=1, le=10_000)
    """The number of tokens n of an n-gram."""

    max_penalty: float = Field(default=-1.0, lt=0)
    """The value that a completion of nothing but one repeated n-gram approaches."""

    def start(self, base: Path | None) -> Runner:
        """Run in this process, in time linear in the completion; no user code is involved."""
        return InProcess(self._item, Accepts(needs=(("completion_ids",),)))

    def _item(self, item: Mapping[str, Any]) -> float:
        return self(item["completion_ids"])

    def __call__(self, ids: Sequence[int]) -> float:
        """Return the punishment of a completion of these tokens, in `max_penalty`..0."""
        total = len(ids) - self.ngram_size + 1
        if total < 1:
            return 0.0
        different = len(set(zip(*(ids[start:] for start in range(self.ngram_size)), strict=False)))
        return self.max_penalty * (1 - different / total) if different < total else 0.0
