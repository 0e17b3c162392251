"""Token losses to one number."""

from __future__ import annotations

import torch
from torch import Tensor


def aggregate(rows: list[list[Tensor]], mode: str, max_length: int) -> Tensor:
    """One number from the token losses of every completion; a row without trained tokens counts nowhere."""
    rows = [row for row in rows if row]
    if not rows:
        return torch.zeros((), dtype=torch.float64)
    tokens = sum(len(row) for row in rows)
    sums = [torch.stack(row).sum() for row in rows]
    total = torch.stack(sums).sum()
    if mode == "token-mean":
        return total / tokens
    if mode == "token-sum":
        return total
    if mode == "seq-mean-token-sum":
        return total / len(rows)
    if mode == "seq-mean-token-mean":
        return torch.stack([s / len(row) for s, row in zip(sums, rows, strict=True)]).mean()
    if mode == "seq-mean-token-sum-norm":
        return total / (len(rows) * max_length)
    raise ValueError(f"unknown aggregation {mode!r}")
