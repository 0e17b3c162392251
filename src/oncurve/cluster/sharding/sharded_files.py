"""Checkpoints of sharded tensors: one safetensors file per rank, read by any number of ranks.

A rank's part of a tensor is a run of its rows, `ceil(rows / ranks)` of them, as `torch.chunk` cuts it. On load every
rank reads the rows that are its own now, out of the files that have them. torch.distributed.checkpoint would do the
same, but its metadata file is a pickle, and oncurve loads none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from oncurve.base.errors import CheckpointError


def rows_of(rank: int, ranks: int, rows: int) -> tuple[int, int]:
    """Return the first row of a rank's part of `rows`, and the one after its last. Both are `rows` for a rank without
    any.
    """
    size = -(-rows // ranks)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def file_of(rank: int, ranks: int) -> str:
    """Return the name of a rank's file in a checkpoint."""
    return f"learner-{rank:03d}-of-{ranks:03d}.safetensors"


def load_part(folder: Path, written: int, names: Mapping[str, Sequence[int]], rank: int, ranks: int) -> dict[str, Any]:
    """Return the parts of rank `rank` of `ranks` of the tensors in a checkpoint that `written` ranks wrote.

    `names` maps the tensors to their whole shapes. Raises CheckpointError: a file is missing, or has other tensors.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for source in range(written):
        path = folder / file_of(source, written)
        try:
            with safe_open(path, "pt") as file:
                if set(file.keys()) != set(names):
                    raise CheckpointError(f"{path} has other tensors than this model: it belongs to another")
                for name, shape in names.items():
                    low, high = rows_of(rank, ranks, shape[0])
                    first, last = rows_of(source, written, shape[0])
                    begin, end = max(low, first), min(high, last)
                    if begin < end:
                        found[name].append(file.get_slice(name)[begin - first : end - first].clone())
                    elif low == high and not found[name]:
                        found[name].append(file.get_slice(name)[0:0])
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    return {name: torch.cat(parts) for name, parts in found.items()}
