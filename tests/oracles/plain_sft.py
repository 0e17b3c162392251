"""The slow, obvious twin of a warm start: each row alone, -100 where nothing is trained, transformers' own loss.

transformers rounds logits to float32 before that loss; here they keep the module's dtype. No imports from oncurve.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers.loss.loss_utils import fixed_cross_entropy

from oracles.plain_forward import plain_attention

IGNORED = -100


def plain_loss(module: nn.Module, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tensor:
    """-1/N Σ log π(o_t) over the N labels of all rows `(ids, labels)` that are not -100; `()`."""
    count = torch.tensor(sum(label != IGNORED for _, labels in rows for label in labels[1:]))
    losses = []
    for ids, labels in rows:
        with plain_attention(module):
            logits = module(torch.tensor([list(ids)])).logits
        losses.append(fixed_cross_entropy(logits[0, :-1], torch.tensor(list(labels[1:])), count, IGNORED))
    return torch.stack(losses).sum()
