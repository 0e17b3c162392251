"""Values read off hidden states: V_t of every token before it is written, and one after the last token."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from oncurve.batching import micro_batches
from oncurve.learner.budget import Budget
from oncurve.models import CausalModel, module_device
from oncurve.ops import in_rows
from oncurve.types import TrainBatch, sent


def blank_head(model: CausalModel) -> nn.Linear:
    """Return a value head for the hidden states of `model`, in float32. Its weights are 0, so every value begins at
    0.
    """
    device = module_device(model.module)
    one = torch.ones(1, dtype=torch.int64, device=device)
    with torch.no_grad():
        width = model.completion_hidden([one], one - 1, one[None], one).shape[1]
    head = nn.Linear(width, 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class ValueReader:
    """The values that `head (H -> 1)` reads off the hidden states of `model`, in micro-batches of `budget`."""

    def __init__(self, model: CausalModel, head: nn.Module, budget: Budget) -> None:
        self.model, self.head, self.budget = model, head, budget

    def of(self, micro: TrainBatch) -> Tensor:
        """Return `V_t (b, T)` of a micro-batch, 0 where there is no token; differentiable."""
        hidden = self.model.completion_hidden(micro.prompts, micro.group_ids, micro.completion_ids, micro.lengths)
        return self.read(hidden, micro)

    def read(self, hidden: Tensor, micro: TrainBatch) -> Tensor:
        """Return the same from the hidden states `(N, H)` that predict the micro-batch's tokens."""
        column = self.head(hidden.to(next(self.head.parameters()).dtype)).squeeze(1)
        (slots,) = sent([micro.slots()], hidden.device)
        return in_rows(column, slots, (micro.size, micro.completion_ids.shape[1]))

    def fill(self, batch: TrainBatch) -> TrainBatch:
        """Return the batch with `values (B, T)` and `bootstrap_values (B,)`, without a gradient.

        The bootstrap value is the value after the last token: that of the state in which one more token would follow.
        """
        longer = TrainBatch(  # rows with one more token, and only the fields that a network reads
            completion_ids=pad(batch.completion_ids, (0, 1)),
            lengths=batch.lengths + 1,
            loss_mask=pad(batch.loss_mask, (0, 1)),
            valid=batch.valid,
            group_ids=batch.group_ids,
            prompts=batch.prompts,
            rewards=batch.rewards,
        )
        with torch.no_grad():
            found = self.budget.fit(lambda tokens: self._all(longer, tokens), longer).to(batch.completion_ids.device)
        rows = torch.arange(batch.size, device=found.device)
        values = torch.where(batch.existing(), found[:, :-1], 0.0)
        return batch.having(values=values, bootstrap_values=found[rows, batch.lengths])

    def _all(self, batch: TrainBatch, tokens: int) -> Tensor:
        width = batch.completion_ids.shape[1]
        pieces = [self.of(micro) for micro in micro_batches(batch, tokens)]
        return torch.cat([pad(piece, (0, width - piece.shape[1])) for piece in pieces])
