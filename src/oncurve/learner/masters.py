"""A parameter's full-precision master, its moments, and what holds them: whole float32, or two bytes each.

    master "float32"   the bfloat16 weight (2 bytes), and a float32 master beside it (4)
    master "split"     the weight is the master's high half, an int16 its low one (2 + 2): the same 32 bits
    moment "float32"   4 bytes;   "bfloat16"   2 bytes, rounded stochastically

A step works on slices: `open` gives a slice in full precision, `close` takes it back. So nothing of a parameter's full
size is ever made, and a slice stays in the processor's cache between the two.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from oncurve.models.gradients import keep_gradient

__all__ = ["Master", "SplitMaster", "WholeMaster", "make_master"]

HALF = (torch.bfloat16, torch.float16)


class Master(Protocol):
    """The full-precision value of one parameter, and how the parameter follows it. `dtype`: of that value."""

    parameter: nn.Parameter
    dtype: torch.dtype

    def whole(self) -> Tensor:
        """All of it, in the parameter's shape; perhaps made anew, so not to be written to."""

    def open(self, start: int, stop: int, room: Tensor) -> Tensor:
        """Its elements `start` to `stop`, flat, in full precision: where they are, or in `room`."""

    def close(self, start: int, stop: int, opened: Tensor) -> None:
        """Take back what `open` gave, changed; the parameter follows. `opened` is not to be read after it."""

    def stored(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, by kind. Views."""

    def refresh(self) -> None:
        """Make the parameter follow what `stored` holds, after it was written to."""


class WholeMaster:
    """A master in float32 or float64: a tensor of its own, or the parameter itself."""

    def __init__(self, parameter: nn.Parameter, master: Tensor) -> None:
        self.parameter = parameter
        self._master = master
        self.dtype = master.dtype

    def whole(self) -> Tensor:
        """See `Master.whole`; the tensor itself."""
        return self._master

    def open(self, start: int, stop: int, room: Tensor) -> Tensor:
        """See `Master.open`; a view."""
        return self._master.detach().view(-1)[start:stop]

    def close(self, start: int, stop: int, opened: Tensor) -> None:
        """See `Master.close`."""
        if self.parameter is not self._master:
            self.parameter.data.view(-1)[start:stop].copy_(opened)

    def stored(self) -> dict[str, Tensor]:
        """See `Master.stored`."""
        return {"master": self._master.detach()}

    def refresh(self) -> None:
        """See `Master.refresh`."""
        if self.parameter is not self._master:
            self.parameter.data.copy_(self._master)


class SplitMaster:
    """A float32 master in two halves: the bfloat16 parameter h, and the low 16 bits l, an int16.

        bits(master) = bits(h)·2¹⁶ + l,   -2¹⁵ <= l < 2¹⁵

    So h is the master rounded to the nearest bfloat16; where two are equally near, the one farther from zero (torch's
    own rounding takes the even one), for then l always fits. No bit of the master is lost.
    """

    dtype = torch.float32

    def __init__(self, parameter: nn.Parameter, exact: Tensor) -> None:
        """`exact` is what the master is to be, in any precision up to float32; `parameter` is in bfloat16."""
        self.parameter = parameter
        self._low = torch.zeros(parameter.shape, dtype=torch.int16, device=parameter.device)
        if exact.dtype != torch.bfloat16:
            self.close(0, parameter.numel(), exact.to(torch.float32, copy=True).view(-1))

    def whole(self) -> Tensor:
        """See `Master.whole`; made anew."""
        room = torch.empty(self._low.numel(), dtype=torch.float32, device=self._low.device)
        return self.open(0, room.numel(), room).view(self._low.shape)

    def open(self, start: int, stop: int, room: Tensor) -> Tensor:
        """See `Master.open`; always in `room`."""
        room.copy_(self.parameter.data.view(-1)[start:stop])
        room.view(torch.int32).add_(self._low.view(-1)[start:stop])
        return room

    def close(self, start: int, stop: int, opened: Tensor) -> None:
        """See `Master.close`."""
        bits = opened.view(torch.int32)
        self._low.view(-1)[start:stop].copy_(bits)  # the low 16 bits: int32 to int16 wraps
        high = bits.add_(1 << 15).bitwise_right_shift_(16)
        self.parameter.data.view(-1)[start:stop].view(torch.int16).copy_(high)

    def stored(self) -> dict[str, Tensor]:
        """See `Master.stored`."""
        return {"high": self.parameter.detach(), "low": self._low}

    def refresh(self) -> None:
        """See `Master.refresh`; the parameter is the high half."""


def make_master(parameter: nn.Parameter, dtype: torch.dtype | None, split: bool) -> Master:
    """The master of a parameter, which itself becomes `dtype`: itself, or one that holds what it held before.

    A bfloat16 parameter has a split master where `split`. The gradient of a trainable one accumulates in its master's
    precision from now on, see `keep_gradient`. A parameter without a dense layout is laid out anew.
    """
    before = parameter.data.contiguous()
    parameter.data = before
    if not parameter.is_floating_point():
        return WholeMaster(parameter, parameter)
    if dtype is not None and parameter.dtype != dtype:
        parameter.data = before.to(dtype)
    half = parameter.dtype in HALF
    if parameter.requires_grad:
        keep_gradient(parameter, torch.float32 if half else parameter.dtype)
    if not half:
        return WholeMaster(parameter, parameter)
    if split and parameter.dtype == torch.bfloat16:
        return SplitMaster(parameter, before)
    master = before.to(torch.float32, copy=before.dtype == torch.float32 and before is parameter.data)
    return WholeMaster(parameter, nn.Parameter(master, requires_grad=parameter.requires_grad))
