"""Tensors that seldom change, by the hash of their bytes: stored once next to the checkpoints, or not at all."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from torch import Tensor

from oncurve import durable
from oncurve.base.errors import CheckpointError

FROZEN = "frozen"
"""The folder, next to those of the checkpoints, of all tensors that are stored once."""


class StoredOnce:
    """The stored form of tensors whose changes are counted by a version: it is written once for each version."""

    def __init__(self) -> None:
        self._stored: tuple[Path, int, str] | None = None

    def save(self, folder: Path, version: int, tensors: Mapping[str, Tensor]) -> str | None:
        """Return the name of `tensors` in `frozen`, where they are stored for the checkpoint that is written into
        `folder`.

        Nothing is written where this version has been stored or loaded there before. None for no tensors.
        """
        if not tensors:
            return None
        frozen = folder.parent / FROZEN
        if self._stored is None or self._stored[:2] != (frozen, version):
            self._stored = (frozen, version, durable.store(frozen, tensors))
        return self._stored[2]

    def load(self, folder: Path, version: int, name: str | None) -> dict[str, Tensor]:
        """Return the tensors of this name for the checkpoint in `folder`. Raises CheckpointError: missing or
        damaged.
        """
        if name is None:
            return {}
        frozen = folder.parent / FROZEN
        found = durable.fetch(frozen, name)
        self._stored = (frozen, version, name)
        return found


class KnownByHash:
    """Frozen tensors that are loaded from elsewhere, like an adapter's base model: a checkpoint has their hash alone.

    They are hashed at most once, because they never change.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    @cached_property
    def digest(self) -> str:
        """Their sha256 in hex."""
        return durable.digest(self._tensors)

    def check(self, stored: str) -> None:
        """Raises CheckpointError unless `stored` is their hash."""
        if stored != self.digest:
            raise CheckpointError(
                "the frozen weights, such as an adapter's base model, have changed since the checkpoint; put the "
                "former ones back where model.path names them"
            )
