"""The gradient of an update in shards, the slow and obvious way: each shard by itself, kept, then added in pairs."""

from torch import Tensor

from oncurve.learner import LocalLearner
from oncurve.types import TrainBatch


def in_pairs(parts: list[Tensor]) -> Tensor:
    """((p₀ + p₁) + (p₂ + p₃)) + ..., of a power of two of tensors."""
    while len(parts) > 1:
        parts = [parts[index] + parts[index + 1] for index in range(0, len(parts), 2)]
    return parts[0]


def gradient_in_shards(learner: LocalLearner, pieces: list[TrainBatch | None]) -> dict[str, Tensor]:
    """By the parameters' names; a shard without rows has gradient 0."""
    kept: list[dict[str, Tensor]] = []
    for piece in pieces:
        learner.optimizer.zero_grad()
        if piece is not None:
            learner.accumulate(piece)
        kept.append({name: part.clone() for name, part in learner.optimizer.gradients().items()})
    learner.optimizer.zero_grad()
    return {name: in_pairs([gradient[name] for gradient in kept]) for name in kept[0]}
