"""AdamW in slices: each is loaded, stepped by torch's own kernel and stored while it is in the processor's cache.

What this adds to `torch.optim.AdamW` is only where the numbers live: masters in two halves, moments in bfloat16, the
refresh of the half-precision weights and the gradient's scale, all in one pass over memory. The only extra memory is
the scratch space of one slice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from oncurve.learner.optimizer.masters import Master
from oncurve.randomness import rounding_key, rounding_table

SLICE = 2**17
"""Elements of one slice on the CPU: 2.6 MB with its workspace, which fits the caches of two cores."""

ACCELERATOR_SLICE = 2**24
"""The same on other devices, where starting a kernel is expensive and no cache holds a slice."""


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of the flattened parameter `name`."""

    name: str
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return these elements of a tensor, flat: a view."""
        return tensor.view(-1)[self.start : self.stop]


def pieces(sizes: Mapping[str, int], most: int) -> Iterator[list[Piece]]:
    """Return parameters of `sizes` cut, in order, into slices of at most `most` elements; small parameters share a
    slice.
    """
    batch: list[Piece] = []
    left = most
    for name, size in sizes.items():
        start = 0
        while start < size:
            stop = min(size, start + left)
            batch.append(Piece(name, start, stop))
            left -= stop - start
            start = stop
            if not left:
                yield batch
                batch, left = [], most
    if batch:
        yield batch


class Moments:
    """The two moving averages of a parameter's gradient, in the master's precision or in bfloat16.

    A bfloat16 moment is rounded stochastically: the probability of rounding up is the discarded fraction of a step, so
    the expectation is exact. Rounding to the nearest would stall the second moment: at β₂ = 0.999 it shrinks by at most
    0.001 of itself per update, and half a step of bfloat16 is 0.002 to 0.004 of it.
    """

    def __init__(self, master: Master, rounded: bool) -> None:
        like, rounded = master.parameter, rounded and master.dtype == torch.float32
        dtype = torch.bfloat16 if rounded else master.dtype
        self.both = [torch.zeros(like.shape, dtype=dtype, device=like.device) for _ in range(2)]

    def load_slice(self, index: int, piece: Piece, scratch: Tensor) -> Tensor:
        """Return moment `index` of a piece in the master's precision: a view of the moment, or `scratch`, filled."""
        stored = piece.of(self.both[index])
        return scratch.copy_(stored) if stored.dtype == torch.bfloat16 else stored

    def store_slice(self, index: int, piece: Piece, values: Tensor, noise: Tensor) -> None:
        """Write back what `load_slice` gave, changed. `noise`: one integer from 0 to 2¹⁶ - 1 per element."""
        stored = piece.of(self.both[index])
        if stored.dtype == torch.bfloat16:
            bits = values.view(torch.int32).add_(noise).bitwise_right_shift_(16)
            stored.view(torch.int16).copy_(bits)


class Workspace:
    """Scratch space for one slice on one device: weight and moments in float32, and noise for rounding the moments.

    `lean`: whether anything is stored in less precision than it is computed in; otherwise no scratch space is needed.
    """

    def __init__(self, device: torch.device, lean: bool) -> None:
        self.size = SLICE if device.type == "cpu" else ACCELERATOR_SLICE
        self.fused = True if device.type in ("cpu", "cuda") else None
        size = self.size if lean else 0
        self._scratch = torch.empty(3, size, dtype=torch.float32, device=device)
        self._noise = torch.empty(2, size, dtype=torch.int32, device=device)
        self._table = rounding_table(size, device)

    def at(self, offset: int, size: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return the three scratch tensors and the noise of the two moments, for `size` elements at `offset` of the
        slice.
        """
        here = slice(offset, offset + size)
        return [scratch[here] for scratch in self._scratch], [noise[here] for noise in self._noise]

    def draw(self, step: int, index: int) -> None:
        """Noise for slice `index` of `step`: a function of (step, index, position) alone, so a resumed run repeats it.

        a·hash(position) + b modulo 2³², with an odd a and a b for each (step, index): every value is uniform. Its low
        half is the first moment's noise, its high half the second's.
        """
        key = rounding_key(step, index)
        low, high = self._noise
        torch.mul(self._table, _as_int32(key | 1), out=low).add_(_as_int32(key >> 32))
        torch.bitwise_right_shift(low, 16, out=high).bitwise_and_(0xFFFF)
        low.bitwise_and_(0xFFFF)


class SlicedAdamW:
    """AdamW (arXiv:1711.05101) over masters and their moments, in place, one slice of the parameters after another."""

    def __init__(self, masters: Mapping[str, Master], numbers: Mapping[str, Any], rounded_moments: bool) -> None:
        """`masters`: by name. `numbers`: torch's arguments of AdamW other than the learning rate.

        `rounded_moments`: the moments are in bfloat16 rather than the masters' precision.
        """
        self.moments: dict[str, Moments] = {}
        self._masters = masters
        self._numbers = numbers
        self._rounded = rounded_moments
        self._lean = rounded_moments or any("low" in master.stored() for master in masters.values())
        self._workspaces: dict[torch.device, Workspace] = {}

    def begin(self) -> None:
        """Set the moments to 0, as before the first step."""
        self.moments = {name: Moments(master, self._rounded) for name, master in self._masters.items()}

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], scale: float, learning_rate: float, number: int) -> None:
        """Step `number` (from 1) with `gradients` times `scale`; their contents are undefined afterwards."""
        if not self.moments:
            self.begin()
        for device in dict.fromkeys(gradient.device for gradient in gradients.values()):
            workspace = self._workspaces.setdefault(device, Workspace(device, self._lean))
            sizes = {name: gradient.numel() for name, gradient in gradients.items() if gradient.device == device}
            for index, batch in enumerate(pieces(sizes, workspace.size)):
                if self._rounded:
                    workspace.draw(number, index)
                self._step(batch, workspace, gradients, scale, learning_rate, number)

    def _step(
        self,
        batch: list[Piece],
        workspace: Workspace,
        gradients: Mapping[str, Tensor],
        scale: float,
        learning_rate: float,
        number: int,
    ) -> None:
        """One slice: load it, step it with torch's AdamW, store it."""
        weights, first, second, noises, offset = [], [], [], [], 0
        slopes = [piece.of(gradients[piece.name]) for piece in batch]
        for piece, slope in zip(batch, slopes, strict=True):
            scratch, noise = workspace.at(offset, slope.numel())
            offset += slope.numel()
            if scale < 1:
                slope.mul_(scale)
            weights.append(self._masters[piece.name].load_slice(piece.start, piece.stop, scratch[0]))
            first.append(self.moments[piece.name].load_slice(0, piece, scratch[1]))
            second.append(self.moments[piece.name].load_slice(1, piece, scratch[2]))
            noises.append(noise)
        done = torch.full((len(batch),), number - 1.0, device=slopes[0].device)
        adamw(
            weights,
            slopes,
            first,
            second,
            [],
            list(done.unbind()),
            fused=workspace.fused,
            amsgrad=False,
            maximize=False,
            lr=learning_rate,
            **self._numbers,
        )
        for index, piece in enumerate(batch):
            self._masters[piece.name].store_slice(piece.start, piece.stop, weights[index])
            self.moments[piece.name].store_slice(0, piece, first[index], noises[index][0])
            self.moments[piece.name].store_slice(1, piece, second[index], noises[index][1])


def _as_int32(value: int) -> int:
    """Return the int32 with the same low 32 bits as `value`."""
    return (value + 2**31) % 2**32 - 2**31
