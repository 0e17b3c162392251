"""Frozen models next to the policy: the reference of the KL term, and the teacher of a distillation.

The KL term measures how far the trained policy is from its reference, the policy as it was given. It may follow the
policy, as a copy every so many steps or as a moving average; `move` alone changes it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from oncurve.base.errors import CheckpointError, ModelError
from oncurve.batching import micro_batches
from oncurve.components import Component
from oncurve.learner.budget import Budget, scored_stats
from oncurve.learner.optimizer.masters import HALF
from oncurve.learner.stored_once import StoredOnce
from oncurve.models import Adapter, CausalModel, Head
from oncurve.types import TrainBatch


class ReferenceSettings(Component):
    """The schedule by which the reference follows the policy: copies or an average. By default it never moves."""

    every: int = Field(default=0, ge=0, le=10**9)
    """Steps between its moves towards the policy; 0: it never moves."""

    mixup_alpha: float = Field(default=1.0, gt=0, le=1)
    """α, how far it moves: π_ref ← α π_θ + (1 - α) π_ref, parameter by parameter; 1.0 copies the policy."""

    def check(self, policy: CausalModel, given: CausalModel | None, dtype: torch.dtype | None = None) -> None:
        """Raises ModelError where the reference is to follow the policy, and the model `given` for it cannot.

        `dtype` is what both will compute in; None: what they compute in now.
        """
        if self.every and given is not None:
            check_can_follow(policy, given, dtype)


class Reference:
    """A frozen model π_ref: a copy of the given policy, never a reload, so that KL is exactly 0 at the start.

    It computes as the policy does (same dtype, same attention path). `version` counts its moves, and its tensors are
    stored once per version.

    model     what computes, within `selected()`
    tensors   what `move` changes, by the names of the policy's parameters
    """

    def __init__(self, model: CausalModel, dtype: torch.dtype | None = None) -> None:
        """Freeze `model`, which must share no parameter with the policy; its floating parameters become `dtype`."""
        self._begin(model, dict(model.module.named_parameters()))
        for parameter in model.module.parameters():
            parameter.requires_grad_(False)
            if dtype is not None and parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)

    def _begin(self, model: CausalModel, tensors: dict[str, Tensor]) -> None:
        self.model, self.tensors = model, tensors
        self.version = 0
        self._stored = StoredOnce()
        self._averages: dict[str, Tensor] = {}

    @classmethod
    def of(cls, policy: CausalModel, given: CausalModel | None, dtype: torch.dtype | None = None) -> Reference:
        """Return the reference of `policy`: the `given` model, or where none, or the policy's own, was given, the
        policy now.

        That is a copy, or the policy's own network where an adapter is all that is trained (`AdapterReference`).
        Raises ModelError: the model cannot be copied.
        """
        if given is not None and is_apart(given, policy):
            return cls(given, dtype)
        if policy.adapter is not None:
            return AdapterReference(policy, policy.adapter)
        try:
            twin = copy.deepcopy(policy if given is None else given)
        except Exception as error:
            raise ModelError(
                f"{type(policy.module).__name__} cannot be copied for the KL reference ({error}); "
                "give a reference model of your own (ref_model), or train without one (kl.coef = 0)"
            ) from error
        for parameter in twin.module.parameters():
            parameter.grad = None
        return cls(twin)

    @property
    def names(self) -> list[str]:
        """The names of what `tensors` has after a move."""
        return list(self.tensors)

    def selected(self) -> AbstractContextManager[object]:
        """Return a context in which `model` computes as the reference does."""
        return nullcontext()

    def head(self) -> Head:
        """Return the layer that turns the hidden states kept by `score` into logits, for the full KL."""
        return self.model.logits

    @torch.no_grad()
    def score(self, batch: TrainBatch, temperature: float, tokens_per_micro_batch: int, full: bool) -> TrainBatch:
        """Return `batch` with `ref_logprobs (B, T)`; with `full` also `ref_hidden (N, H)`, which the full KL needs."""
        with self.selected():
            stats = scored_stats(self.model, batch, temperature, tokens_per_micro_batch)
            scored = batch.having(ref_logprobs=stats.logprobs)
            if not full:
                return scored
            hidden = [
                self.model.completion_hidden(micro.prompts, micro.group_ids, micro.completion_ids, micro.lengths)
                for micro in micro_batches(batch, tokens_per_micro_batch)
            ]
        return scored.having(ref_hidden=torch.cat(hidden))

    @torch.no_grad()
    def move(self, policy: CausalModel, masters: Mapping[str, Tensor], mixup_alpha: float) -> None:
        """π_ref ← mixup_alpha π_θ + (1 - mixup_alpha) π_ref, one parameter at a time.

        At 1 it gets the bits that `policy` computes with, so that KL is exactly 0. Below 1 it moves towards the
        full-precision `masters`, and a half-precision parameter follows a float32 average that is kept next to it:
        small moves are not lost to rounding.

        Raises ModelError, with nothing changed, where the reference is another model than the policy.
        """
        check_can_follow(policy, self.model)
        self.follow(dict(policy.module.named_parameters()), masters, mixup_alpha)

    @torch.no_grad()
    def follow(self, now: Mapping[str, Tensor], masters: Mapping[str, Tensor], mixup_alpha: float) -> None:
        """`move` by tensors of the names and shapes of `tensors`: the policy's, and its `masters`."""
        self.version += 1  # before the first tensor changes, so that a move that fails half-way can be told
        for name, parameter in self.tensors.items():
            if mixup_alpha == 1 or not parameter.is_floating_point():
                self._averages.pop(name, None)
                parameter.copy_(now[name])
                continue
            if parameter.dtype in HALF and name not in self._averages:
                self._averages[name] = parameter.detach().float()
            average = self._averages.get(name, parameter)
            average.lerp_(masters[name].to(average.device), mixup_alpha)
            parameter.copy_(average)

    def state(self) -> dict[str, Tensor]:
        """Return every one of `tensors`, or the float32 average that it follows. Views, valid until the next move."""
        return {name: tensor.detach() for name, tensor in self.tensors.items()} | self._averages

    def save(self, folder: Path) -> dict[str, Any]:
        """Store the tensors once per version next to the checkpoint in `folder`; the record for `load`."""
        return {"version": self.version, "tensors": self._stored.save(folder, self.version, self.state())}

    @torch.no_grad()
    def load(self, folder: Path, record: Mapping[str, Any]) -> None:
        """Restore what `save` wrote, bit for bit. Raises CheckpointError, with nothing changed, for another model's."""
        version = int(record["version"])
        self.take_over(version, self._stored.load(folder, version, record["tensors"]))

    @torch.no_grad()
    def take_over(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Become what another reference was whose `state()` this is. Raises CheckpointError for another model's."""
        mine = self._for(tensors)
        if mine.keys() != tensors.keys() or any(mine[name].shape != tensors[name].shape for name in mine):
            raise CheckpointError("the stored reference has other tensors than this model: it belongs to another")
        self.version, self.tensors = version, mine
        self._averages.clear()
        for name, parameter in mine.items():
            parameter.copy_(tensors[name])
            if parameter.dtype in HALF and tensors[name].dtype == torch.float32:
                self._averages[name] = tensors[name].to(parameter.device, copy=True)

    def _for(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that take the stored ones."""
        return self.tensors


class AdapterReference(Reference):
    """The policy's own network with its adapter off, or with a frozen copy of its adapter: no second model.

    The adapter is off (`tensors` is empty) as long as the reference is the base model: until the first move, and from
    the start where the adapter began with B = 0. The KL is then exactly 0 at the start, because x + 0 = x.
    """

    def __init__(self, policy: CausalModel, adapter: Adapter) -> None:
        self._adapter = adapter
        self._begin(policy, {} if adapter.begins_as_base() else self._copied())

    @property
    def names(self) -> list[str]:
        """The names of the adapter's factors."""
        return list(self._adapter.parameters)

    def _copied(self) -> dict[str, Tensor]:
        """Return a copy of the policy's factors as they are now."""
        return self._adapter.copy_frozen()

    def selected(self) -> AbstractContextManager[object]:
        """Return a context in which the policy's network computes as the reference does, for scoring alone."""
        return self._adapter.using(self.tensors) if self.tensors else self._adapter.off()

    def head(self) -> Head:
        """Return the policy's head, with the adapter as the reference has it."""
        policy = self.model.logits

        def logits(hidden: Tensor) -> Tensor:
            with self.selected():
                return policy(hidden)

        return logits

    @torch.no_grad()
    def follow(self, now: Mapping[str, Tensor], masters: Mapping[str, Tensor], mixup_alpha: float) -> None:
        """`move` by tensors of the names of the adapter's factors: the policy's, and their `masters`.

        The first move of a reference that was the base model starts at the policy's A with B = 0, so that its low-rank
        product becomes mixup_alpha times the policy's.
        """
        if not self.tensors:
            self.tensors = self._copied()
            for name, tensor in self.tensors.items():
                if ".lora_B." in name:
                    tensor.zero_()
        super().follow(now, masters, mixup_alpha)

    def _for(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._copied() if stored else {}


def is_apart(model: CausalModel, policy: CausalModel) -> bool:
    """Return whether `model` shares no parameter with `policy`."""
    mine = set(map(id, policy.module.parameters()))
    return not any(id(parameter) in mine for parameter in model.module.parameters())


def check_can_follow(policy: CausalModel, reference: CausalModel, dtype: torch.dtype | None = None) -> None:
    """Raises ModelError where the reference could not become the policy: another class, other tensors.

    `dtype` is what the floating parameters of both become; None: they keep their dtypes, which must be equal.
    """
    if reason := _unlike(policy.module, reference.module, dtype):
        raise ModelError(
            f"the reference cannot follow the policy: {reason}; set reference.every = 0 to keep it as it was given, "
            "or give no reference, and it begins as a copy of the policy"
        )


def _unlike(policy: nn.Module, reference: nn.Module, dtype: torch.dtype | None) -> str | None:
    """Return how the second module differs from the first in more than the values of its parameters; None: in
    nothing.
    """
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


class Teacher:
    """Scores batches with a frozen `model`, or with the policy's own weights as they are in each step.

    It is in no checkpoint: a frozen teacher is loaded again, the policy's weights are the policy's.
    """

    def __init__(self, model: CausalModel, policy: CausalModel, dtype: torch.dtype | None = None) -> None:
        """Freeze `model`, whose floating parameters become `dtype`, unless it is the `policy` itself."""
        self.model = model if model is policy else Reference(model, dtype).model

    def score(self, batch: TrainBatch, temperature: float, budget: Budget) -> TrainBatch:
        """Return `batch` with `teacher_logprobs (B, T)`: after `teacher_prompts` where it has them, else after its
        prompts.

        The logits are divided by `temperature`, as the policy's and the reference's are.
        """
        read = as_read(batch)
        found = budget.fit(lambda tokens: scored_stats(self.model, read, temperature, tokens), read)
        return batch.having(teacher_logprobs=found.logprobs)


def as_read(batch: TrainBatch) -> TrainBatch:
    """Return the batch with the prompts that a teacher reads."""
    return batch if batch.teacher_prompts is None else batch.having(prompts=batch.teacher_prompts)
