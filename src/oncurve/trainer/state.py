"""What a step begins with, what it is given, and its result: small records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from oncurve.base.errors import CheckpointError
from oncurve.data import Counts
from oncurve.trainer.groups.surplus import SurplusGroup
from oncurve.types import Group


@dataclass(frozen=True)
class TrainerState:
    """The position of a run after `step` whole steps.

    Example: after 3 steps of 32 prompts, `TrainerState(step=3, cursor=96, draw=3, metrics_bytes=2210)`.

    step            steps finished
    cursor          prompts taken from the source so far; epoch and position follow from it
    draw            batches drawn so far: a part of every sampled token's randomness key
    skipped_in_a_row   updates skipped for a non-finite loss or gradient, without a good one since
    metrics_bytes   length of `metrics.jsonl`; the rest was written by a step that is repeated
    seconds         time spent in steps so far
    kl_coef         β of the next step, where the KL is in the reward and adaptive
    entropy_coef    c of the next step, where the entropy bonus is adapted; `entropy`: of the last step, None: not known
    best            the best value of `checkpoint.best` so far, None: none yet; `best_step`: after which step, 0: before
                    the first; `since_best`: evaluations since then
    surplus         groups that dynamic sampling has kept for the next step, in the order in which it trains on them
    counts          of a curriculum: by a prompt's id how many of its completions were right, and how many there were
    """

    step: int = 0
    cursor: int = 0
    draw: int = 0
    skipped_in_a_row: int = 0
    metrics_bytes: int = 0
    seconds: float = 0.0
    kl_coef: float | None = None
    entropy_coef: float | None = None
    entropy: float | None = None
    best: float | None = None
    best_step: int = 0
    since_best: int = 0
    surplus: tuple[SurplusGroup, ...] = ()
    counts: Counts = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-able values, without `surplus`, which is a file of its own."""
        return asdict(replace(self, surplus=())) | {"surplus": len(self.surplus)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any], surplus: tuple[SurplusGroup, ...] = ()) -> TrainerState:
        """The inverse of `to_json`. Raises CheckpointError where fields are missing or unknown."""
        counts = {int(number): tuple(pair) for number, pair in record.get("counts", {}).items()}
        try:
            return cls(**{**record, "surplus": surplus, "counts": counts})
        except TypeError as error:
            raise CheckpointError(f"the trainer's state was written by another version of oncurve: {error}") from error


@dataclass(frozen=True)
class Collected:
    """The groups of a step, with their scores.

    groups    those that the step trains on, and those that it leaves out for good
    usable    those that it trains on: surplus of the step before first, then in the order of the prompts
    surplus   those that the next step trains on; they are not among `groups`
    cursor    prompts taken from the source, these included
    draw      rounds of sampling, these included
    counts    of a curriculum, `usable` included
    """

    groups: tuple[Group, ...]
    usable: tuple[Group, ...]
    surplus: tuple[SurplusGroup, ...]
    cursor: int
    draw: int
    counts: Counts = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult:
    """A step's number (from 1), its metrics by declared key, and every group it sampled.

    `advantages[g]` is `(n, T)` over the completions of `groups[g]`; None where the group was left out.
    """

    step: int
    metrics: dict[str, float]
    groups: tuple[Group, ...]
    advantages: tuple[Tensor | None, ...]
