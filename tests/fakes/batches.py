"""Batches of one group whose rows are as wide as the mask of what is trained."""

import torch
from torch import Tensor

from oncurve.types import TrainBatch


def rows_of(mask: Tensor, **streams: Tensor | None) -> TrainBatch:
    """A batch with these `streams`, whose tokens are all 0 and whose rewards are."""
    rows, width = mask.shape
    return TrainBatch(
        completion_ids=torch.zeros(rows, width, dtype=torch.int64),
        lengths=torch.full((rows,), width),
        loss_mask=mask,
        valid=torch.ones(rows, dtype=torch.bool),
        group_ids=torch.zeros(rows, dtype=torch.int64),
        prompts=(torch.tensor([1]),),
        rewards=torch.zeros(rows, dtype=torch.float64),
        **streams,
    )
