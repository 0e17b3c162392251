"""The reference: the policy as it was given, frozen, which the KL term holds the trained one near.

It may follow the policy, by steps that only `move` makes: a copy of it every so often, or a moving average.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad

from oncurve.batching import micro_batches
from oncurve.errors import CheckpointError, ModelError
from oncurve.learner.masters import HALF
from oncurve.models import CausalModel, Head, token_streams
from oncurve.spec import Component
from oncurve.types import TrainBatch

__all__ = ["Reference", "ReferenceSettings", "check_can_follow", "scored_logprobs"]


class ReferenceSettings(Component):
    """How the reference follows the policy: a copy every so often, or an average; by default it stays as it was given.

    every   steps between its moves towards the policy; 0: it never moves
    mixup   how far it moves: π_ref ← mixup π_θ + (1 - mixup) π_ref, parameter by parameter; 1.0 copies the policy
    """

    every: int = Field(default=0, ge=0, le=10**9)
    mixup: float = Field(default=1.0, gt=0, le=1)

    def check(self, policy: CausalModel, given: CausalModel | None, dtype: torch.dtype | None = None) -> None:
        """Raises ModelError where the reference is to follow, and the model that was `given` for it cannot.

        `dtype` is what both are going to compute in; None: what they compute in now.
        """
        if self.every and given is not None:
            check_can_follow(policy, given, dtype)


class Reference:
    """A frozen model π_ref: a copy of the given policy, never a reload, so that KL is exactly 0 at the start.

    It computes as the policy does (same dtype, same attention path). Its tensors change by `move` alone, and `version`
    counts those, so a checkpoint stores them once for each.
    """

    def __init__(self, model: CausalModel, dtype: torch.dtype | None = None) -> None:
        """Freeze `model`, which must share no parameter with the policy; its floating parameters become `dtype`."""
        self.model = model
        self.version = 0
        self._averages: dict[str, Tensor] = {}
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

    @torch.no_grad()
    def move(self, policy: CausalModel, masters: Mapping[str, Tensor], mixup: float) -> None:
        """π_ref ← mixup π_θ + (1 - mixup) π_ref, one parameter at a time.

        At 1 it gets the bits that `policy` computes with, so that KL is exactly 0. Below, the policy is its
        full-precision `masters`, and a half-precision parameter follows a float32 average that is kept beside it:
        small moves are not lost to rounding.

        Raises ModelError, with nothing changed, where the reference is another model than the policy.
        """
        check_can_follow(policy, self.model)
        self.version += 1  # before the first tensor changes: a move that fails half-way is told by it
        now = dict(policy.module.named_parameters())
        for name, parameter in self.model.module.named_parameters():
            if mixup == 1 or not parameter.is_floating_point():
                self._averages.pop(name, None)
                parameter.copy_(now[name])
                continue
            if parameter.dtype in HALF and name not in self._averages:
                self._averages[name] = parameter.detach().float()
            average = self._averages.get(name, parameter)
            average.lerp_(masters[name].to(average.device), mixup)
            parameter.copy_(average)

    def state(self) -> dict[str, Tensor]:
        """Every parameter by name, or in its place the float32 average that it follows. Views, until the next move."""
        return {name: parameter.detach() for name, parameter in self.model.module.named_parameters()} | self._averages

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `state()` gave. Raises CheckpointError if it belongs to another model."""
        mine = dict(self.model.module.named_parameters())
        if mine.keys() != tensors.keys() or any(mine[name].shape != tensors[name].shape for name in mine):
            raise CheckpointError("the stored reference has other tensors than this model: it belongs to another")
        self._averages.clear()
        for name, parameter in mine.items():
            parameter.copy_(tensors[name])
            if parameter.dtype in HALF and tensors[name].dtype == torch.float32:
                self._averages[name] = tensors[name].to(parameter.device, copy=True)


def check_can_follow(policy: CausalModel, reference: CausalModel, dtype: torch.dtype | None = None) -> None:
    """Raises ModelError where the reference could not become the policy: another class, other tensors.

    `dtype` is what the floating parameters of both become; None: they stay what they are, and must be the same.
    """
    theirs, mine = policy.module, reference.module
    reason = _unlike(theirs, mine, dtype)
    if reason is not None:
        raise ModelError(
            f"the reference cannot follow the policy: {reason}; set reference.every = 0 to keep it as it was given, "
            "or give no reference, and it begins as a copy of the policy"
        )


def _unlike(policy: nn.Module, reference: nn.Module, dtype: torch.dtype | None) -> str | None:
    """How the second module differs from the first in more than the values of its parameters; None: not at all."""
    if type(policy) is not type(reference):
        return f"it is a {type(reference).__name__}, the policy a {type(policy).__name__}"
    theirs, mine = dict(policy.named_parameters()), dict(reference.named_parameters())
    if other := sorted(theirs.keys() ^ mine.keys()):
        return f"only one of them has the parameter {other[0]!r}"
    for name, parameter in mine.items():
        if parameter.shape != theirs[name].shape:
            return f"its {name!r} is {tuple(parameter.shape)}, the policy's {tuple(theirs[name].shape)}"
        if dtype is None and parameter.dtype != theirs[name].dtype:
            return f"its {name!r} is {parameter.dtype}, the policy's {theirs[name].dtype}"
    buffers, kept = dict(policy.named_buffers()), dict(reference.named_buffers())
    if buffers.keys() != kept.keys() or not all(_same(buffers[name], kept[name]) for name in kept):
        return "their buffers, which are no parameters and do not move, differ"
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other.to(one.device))


@torch.no_grad()
def scored_logprobs(model: CausalModel, batch: TrainBatch, temperature: float, tokens_per_micro_batch: int) -> Tensor:
    """Log-probs `(B, T)` of the batch's completions under `model`, by micro-batches, without a gradient."""
    width = batch.completion_ids.shape[1]
    pieces = []
    for micro in micro_batches(batch, tokens_per_micro_batch):
        logprobs = token_streams(model, micro, temperature=temperature).logprobs
        pieces.append(pad(logprobs, (0, width - logprobs.shape[1])))
    return torch.cat(pieces).to(batch.completion_ids.device)
