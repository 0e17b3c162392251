"""The full-precision master weights of the parameters that are trained.

    master "float32"   the bfloat16 weight (2 bytes), and a float32 master (4 bytes) next to it
    master "split"     the weight is the master's high half, an int16 its low half (2 + 2 bytes): the same 32 bits
    moment "float32"   4 bytes;   "bfloat16"   2 bytes, rounded stochastically

A step works on slices: `load_slice` gives elements `start` to `stop`, flat, in full precision: a view of the master, or
`scratch`, filled. `store_slice` writes them back, changed, and the parameter follows. No temporary tensor has a
parameter's full size, and a slice stays in the processor's cache between the two calls. `stored` is what a checkpoint
holds of a master, as views; `refresh` makes the parameter follow it, after that was written to.
"""

import torch
from torch import Tensor, nn

from oncurve.models.head import keep_gradient

HALF = (torch.bfloat16, torch.float16)


class WholeMaster:
    """A master in float32 or float64: a tensor of its own, or the parameter itself."""

    def __init__(self, parameter: nn.Parameter, master: Tensor) -> None:
        self.parameter = parameter
        self._master = master
        self.dtype = master.dtype

    def whole(self) -> Tensor:
        """Return the master itself; do not write to it."""
        return self._master

    def load_slice(self, start: int, stop: int, scratch: Tensor) -> Tensor:
        """Return a view of the master."""
        return self._master.detach().view(-1)[start:stop]

    def store_slice(self, start: int, stop: int, values: Tensor) -> None:
        """Copy the slice into the parameter, unless the parameter is the master."""
        if self.parameter is not self._master:
            self.parameter.data.view(-1)[start:stop].copy_(values)

    def stored(self) -> dict[str, Tensor]:
        """Return the master as `master`."""
        return {"master": self._master.detach()}

    def refresh(self) -> None:
        """Copy the master into the parameter."""
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
            self.store_slice(0, parameter.numel(), exact.to(torch.float32, copy=True).view(-1))

    def whole(self) -> Tensor:
        """Return the two halves joined in a new tensor."""
        joined = torch.empty(self._low.numel(), dtype=torch.float32, device=self._low.device)
        return self.load_slice(0, joined.numel(), joined).view(self._low.shape)

    def load_slice(self, start: int, stop: int, scratch: Tensor) -> Tensor:
        """Return the two halves of the slice joined in `scratch`."""
        scratch.copy_(self.parameter.data.view(-1)[start:stop])
        scratch.view(torch.int32).add_(self._low.view(-1)[start:stop])
        return scratch

    def store_slice(self, start: int, stop: int, values: Tensor) -> None:
        """Split the slice into the two halves; `values` is undefined afterwards."""
        bits = values.view(torch.int32)
        self._low.view(-1)[start:stop].copy_(bits)  # the low 16 bits: int32 to int16 wraps
        high = bits.add_(1 << 15).bitwise_right_shift_(16)
        self.parameter.data.view(-1)[start:stop].view(torch.int16).copy_(high)

    def stored(self) -> dict[str, Tensor]:
        """Return the two halves as `high` and `low`."""
        return {"high": self.parameter.detach(), "low": self._low}

    def refresh(self) -> None:
        """The parameter is the high half: there is nothing to do."""


Master = WholeMaster | SplitMaster
"""The full-precision value of one parameter, in `dtype`, and how the parameter follows it."""


def widened(tensor: Tensor) -> Tensor:
    """Return a half-precision tensor in float32; any other as it is."""
    return tensor.float() if tensor.dtype in HALF else tensor


def cast_parameter(parameter: nn.Parameter, dtype: torch.dtype | None) -> Tensor:
    """Give a floating parameter `dtype` (None: its own) and a dense layout; returns its data from before the cast."""
    before = parameter.data.contiguous()
    cast = dtype is not None and parameter.is_floating_point() and parameter.dtype != dtype
    parameter.data = before.to(dtype) if cast else before
    return before


def make_master(parameter: nn.Parameter, dtype: torch.dtype | None, split: bool) -> Master:
    """Return the master of a trainable parameter, which is cast to `dtype`: it holds the values from before the cast.

    A float32 or float64 parameter is its own master; a bfloat16 one has a split master where `split`. From now on the
    gradient accumulates in the master's precision (`keep_gradient`).
    """
    before = cast_parameter(parameter, dtype)
    half = parameter.dtype in HALF
    keep_gradient(parameter, torch.float32 if half else parameter.dtype)
    if not half:
        return WholeMaster(parameter, parameter)
    if split and parameter.dtype == torch.bfloat16:
        return SplitMaster(parameter, before)
    return WholeMaster(parameter, before.to(torch.float32))
