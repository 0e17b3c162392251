"""The gradient of an update in shards: a learner computes each by itself, and they are added in a fixed tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from oncurve.batching import shards
from oncurve.learner import Accumulated, LocalLearner
from oncurve.metrics import Metrics
from oncurve.parallel import ALONE, World
from oncurve.types import TrainBatch

PASS_TOKENS = 32
"""What a shard costs in addition to its tokens, in tokens: a gradient written and added, and operations of any size."""


def few_shards(batch: TrainBatch, most: int) -> list[TrainBatch | None]:
    """Return the rows in `most` shards, or in a half, a quarter, ... of so many: all take at most twice as long as one.

    A shard computes the prompts of its rows by itself. This is a function of the batch alone.
    """
    pieces, whole = shards(batch, most), _cost(batch)
    while len(pieces) > 1 and sum(map(_cost, pieces)) > 2 * whole:
        pieces = shards(batch, len(pieces) // 2)
    return pieces


def _cost(rows: TrainBatch | None) -> int:
    return 0 if rows is None else PASS_TOKENS + sum(map(len, rows.prompts)) + int(rows.lengths.sum())


class GradientShards:
    """The rows with a gradient in shards; a piece is None for one without rows, and may be for another rank's."""

    def __init__(self, learner: LocalLearner, pieces: Sequence[TrainBatch | None]) -> None:
        self._learner, self.pieces = learner, pieces

    def summed(self, world: World = ALONE) -> dict[int, Accumulated]:
        """Compute this rank's shards, and add all ranks' gradients in the tree of `World.tree_sum`: rank 0 has the sum.

        Returns loss and statistics of its shards by index. Raises LostRankError: nothing but `.grad` has changed.
        """
        found: dict[int, Accumulated] = {}

        def leaf(index: int) -> list[Tensor]:
            found[index] = self._learner.gradient_of(self.pieces[index])
            return list(self._learner.optimizer.gradients().values())

        world.tree_sum(leaf, len(self.pieces))
        return found

    def joined(self, minibatch: TrainBatch, found: Mapping[int, Accumulated]) -> Accumulated:
        """Return what `LocalLearner.accumulate` does, of all shards: losses and statistics are added in their order."""
        metrics, loss = Metrics(), torch.zeros((), dtype=torch.float64)
        for index in sorted(found):
            loss += found[index].loss.cpu()
            metrics.merge(found[index].metrics)
        return self._learner.completed(minibatch, Accumulated(loss, metrics))
