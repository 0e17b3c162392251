"""The reference: the policy as it was given, frozen, which the KL term holds the trained one near."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from oncurve.batching import micro_batches
from oncurve.errors import CheckpointError, ModelError
from oncurve.models import CausalModel, Head, token_streams
from oncurve.types import TrainBatch

__all__ = ["Reference", "scored_logprobs"]


class Reference:
    """A frozen model π_ref: a copy of the given policy, never a reload, so that KL is exactly 0 at the start.

    It computes as the policy does (same dtype, same attention path). Its tensors never change, so a checkpoint stores
    them once.
    """

    def __init__(self, model: CausalModel, dtype: torch.dtype | None = None) -> None:
        """Freeze `model`, which must share no parameter with the policy; its floating parameters become `dtype`."""
        self.model = model
        for parameter in model.module.parameters():
            parameter.requires_grad_(False)
            if dtype is not None and parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)

    @classmethod
    def beside(cls, policy: CausalModel, given: CausalModel | None, dtype: torch.dtype | None = None) -> Reference:
        """The reference of `policy`: the model that was `given`, or a copy of the policy if none or the policy was."""
        mine = set(map(id, policy.module.parameters()))
        if given is None or any(id(parameter) in mine for parameter in given.module.parameters()):
            return cls.copy_of(policy if given is None else given)
        return cls(given, dtype)

    @classmethod
    def copy_of(cls, policy: CausalModel) -> Reference:
        """A frozen copy of `policy` as it is now. Raises ModelError if the model cannot be copied."""
        try:
            twin = copy.deepcopy(policy)
        except Exception as error:
            raise ModelError(
                f"{type(policy.module).__name__} cannot be copied for the KL reference ({error}); "
                "give a reference model of your own (ref_model), or train without one (kl.coef = 0)"
            ) from error
        for parameter in twin.module.parameters():
            parameter.grad = None
        return cls(twin)

    def head(self) -> Head:
        """What makes logits of the hidden states that `score` keeps for the full KL."""
        return self.model.head()

    @torch.no_grad()
    def score(self, batch: TrainBatch, temperature: float, tokens_per_micro_batch: int, full: bool) -> TrainBatch:
        """`batch` with `ref_logprobs (B, T)`; with `full` also `ref_hidden (N, H)`, which the full KL needs."""
        scored = batch.having(ref_logprobs=scored_logprobs(self.model, batch, temperature, tokens_per_micro_batch))
        if not full:
            return scored
        hidden = [
            self.model.completion_hidden(micro.prompts, micro.group_ids, micro.completion_ids, micro.lengths)
            for micro in micro_batches(batch, tokens_per_micro_batch)
        ]
        return scored.having(ref_hidden=torch.cat(hidden))

    def state(self) -> dict[str, Tensor]:
        """Every parameter by name. Views: they never change."""
        return {name: parameter.detach() for name, parameter in self.model.module.named_parameters()}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `state()` gave. Raises CheckpointError if it belongs to another model."""
        mine = self.state()
        if mine.keys() != tensors.keys() or any(mine[name].shape != tensors[name].shape for name in mine):
            raise CheckpointError("the stored reference has other tensors than this model: it belongs to another")
        for name, parameter in mine.items():
            parameter.copy_(tensors[name])


@torch.no_grad()
def scored_logprobs(model: CausalModel, batch: TrainBatch, temperature: float, tokens_per_micro_batch: int) -> Tensor:
    """Log-probs `(B, T)` of the batch's completions under `model`, by micro-batches, without a gradient."""
    width = batch.completion_ids.shape[1]
    pieces = []
    for micro in micro_batches(batch, tokens_per_micro_batch):
        logprobs = token_streams(model, micro, temperature=temperature).logprobs
        pieces.append(pad(logprobs, (0, width - logprobs.shape[1])))
    return torch.cat(pieces).to(batch.completion_ids.device)
