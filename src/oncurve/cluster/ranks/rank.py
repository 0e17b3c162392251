"""One rank of a learner: a copy of the policy with its optimizer, in a process of its own.

The gradient of an update is in shards: a learner computes each by itself, and they are added in a fixed tree.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from oncurve.batching import shards
from oncurve.learner import Accumulated, LocalLearner, take_over
from oncurve.machine.threads import begin_process
from oncurve.metrics import Metrics
from oncurve.models import CausalModel
from oncurve.parallel import ALONE, Meeting, World
from oncurve.types import TrainBatch, axes_of

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


class Rank:
    """The object that `FleetLearner` calls in each process.

    `accumulate` changes nothing but the gradient, `apply` makes the step.

    It must be as rank 0 is before each call; where it may not be, `take_over` copies rank 0.
    """

    learner: LocalLearner

    def __init__(
        self,
        make: Callable[[], LocalLearner],
        threads: int,
        wait_seconds: float,
        models: Sequence[CausalModel] = (),
        device: torch.device | None = None,
    ) -> None:
        """`make` makes the learner of the `models`: here, so that forks share what none writes to, or, with a `device`,
        in the rank's own process, after they were moved there."""
        self._make, self._models, self._device = make, models, device
        self._threads, self._wait = threads, wait_seconds
        self._world = ALONE
        if device is None:
            self.learner = make()

    def begin(self) -> None:
        """Called once in the rank's own process."""
        begin_process(self._threads)
        if self._device is not None:
            for model in self._models:
                model.module.to(self._device)
            self.learner = self._make()

    def join(self, rank: int, size: int, meeting: Meeting | None) -> None:
        """Leave the former world and join another. Raises LostRankError."""
        self._world.leave()
        self._world = World.join(rank, size, meeting, self._wait)

    def take_over(self, record: Mapping[str, Any], shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Become as rank 0, which sends its tensors. Raises LostRankError: nothing has changed."""
        tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
        self._world.receive(list(tensors.values()), 0)
        take_over(self.learner, record, tensors)

    def accumulate(self, pieces: Mapping[int, TrainBatch | None], shards: int) -> dict[int, Accumulated]:
        """Return the gradient of this rank's shards, added to the others' in the tree; loss and statistics of its
        own.
        """
        return GradientShards(self.learner, [pieces.get(index) for index in range(shards)]).summed(self._world)

    def apply(self, loss: float) -> tuple[int, float]:
        """Return the update with rank 0's gradient, at the `loss` of the whole batch; the version, and the gradient's
        norm.
        """
        gradient = list(self.learner.optimizer.gradients().values())
        self._world.broadcast(gradient)
        result = self.learner.apply(Accumulated(torch.tensor(loss, dtype=torch.float64), Metrics()))
        return self.learner.version, norm_of(result.metrics)

    def score(self, pieces: Mapping[int, TrainBatch], want: frozenset[str]) -> dict[int, dict[str, Tensor]]:
        """Return what `LocalLearner.score` adds to each of the shards."""
        return {index: added(piece, self.learner.score(piece, want)) for index, piece in pieces.items()}

    def move_reference(self, alpha: float) -> None:
        """π_ref ← α π_θ + (1 - α) π_ref."""
        self.learner.move_reference(alpha)


def added(before: TrainBatch, after: TrainBatch) -> dict[str, Tensor]:
    """Return the fields that a batch has got since `before`."""
    names = [name for name in axes_of(after) if getattr(after, name) is not getattr(before, name)]
    return {name: getattr(after, name).to(before.completion_ids.device) for name in names}


def norm_of(metrics: Metrics) -> float:
    """Return the gradient's norm of an update; -1 where it was skipped."""
    return metrics.result().get("optim/grad_norm", -1.0)
