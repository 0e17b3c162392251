"""Advantages put into the batch, and looked at first: a component from elsewhere may return anything."""

from __future__ import annotations

from torch import Tensor

from oncurve.errors import ConfigError
from oncurve.trainer.protocols import Advantage
from oncurve.types import Graded, TrainBatch

__all__ = ["credited"]


def credited(batch: TrainBatch, advantage: Advantage) -> TrainBatch:
    """The batch with `advantages (B, T)`, and with `returns (B, T)` where a critic is to learn from them.

    Raises ConfigError: the advantage gives something else, or no returns where the batch has a critic's values.
    """
    found: object = advantage(batch)
    name, shape = type(advantage).__name__, tuple(batch.completion_ids.shape)
    parts = [found.advantages, found.returns] if isinstance(found, Graded) else [found]
    for part in parts:
        if not isinstance(part, Tensor) or tuple(part.shape) != shape:
            given = f"{tuple(part.shape)} {part.dtype}" if isinstance(part, Tensor) else repr(part)[:80]
            raise ConfigError(
                f"advantage.kind: {name} must return one advantage per token, a tensor (B, T), here {shape}; it "
                f"returned {given}. For one advantage per completion (B,), return x[:, None] * batch.existing()"
            )
    if batch.values is not None and not isinstance(found, Graded):
        raise ConfigError(
            f"advantage.kind: {name} returned advantages without returns, and the critic learns from returns; return "
            "oncurve.types.Graded(advantages, returns)"
        )
    assert isinstance(found, Tensor | Graded)
    return batch.with_advantages(found)
