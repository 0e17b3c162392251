"""The accumulator: observations in, one number per key out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import add, itemgetter

import torch
from torch import Tensor

from oncurve.metrics.metric import declared


class Metrics:
    """Observations by declared key, kept as (sum, count), a maximum, or the last one.

        metrics = Metrics()
        metrics.add("policy/entropy", stats.entropy, micro.loss_mask)   # every trained token is an observation
        metrics.add("optim/grad_norm", 0.7)                             # one observation
        metrics.add("reward/mean", 12.0, count=32)                      # the sum of 32 observations
        metrics.add_all("completions/length", [12.0, 7.0])              # two observations
        metrics.merge(metrics_of_another_micro_batch)
        metrics.result()["policy/entropy"]

    Merging is exact: the result is that of all observations together, however they are divided into pieces.
    Observations that are NaN or infinite are left out and counted in `metrics/nonfinite`, and so is a result that
    overflowed. Tensors on an accelerator are reduced there and fetched with the result, so that adding does not wait
    for the device.
    """

    def __init__(self) -> None:
        self._totals: dict[str, _Total] = {}
        self._on_device: list[tuple[str, Tensor]] = []  # totals (3,) float64 that have not been fetched yet

    def add(self, key: str, values: Tensor | float, mask: Tensor | None = None, *, count: float | None = None) -> None:
        """Add the elements of `values` (those where `mask` is True) as observations of `key`.

        With `count`, `values` is one number: the sum of that many observations (for "mean" and "sum" only).
        Raises KeyError: `key` is not declared. ValueError: `mask` of another shape, a misplaced `count`.
        """
        reduction = declared(key).reduction
        if count is not None and (isinstance(values, Tensor) or mask is not None or reduction not in ("mean", "sum")):
            raise ValueError(f"{key}: `count` goes with one number, no mask, and the reductions mean and sum")
        if not isinstance(values, Tensor):
            usable = math.isfinite(values)
            self._fold(key, (values, 1.0 if count is None else count, 0.0) if usable else (-math.inf, 0.0, 1.0))
            return
        if mask is not None and mask.shape != values.shape:
            raise ValueError(f"{key}: mask {tuple(mask.shape)} does not fit values {tuple(values.shape)}")
        observed = values.detach().to(torch.float64)
        asked = torch.ones_like(observed, dtype=torch.bool) if mask is None else mask.bool()
        kept = asked & observed.isfinite()
        left_out = (asked & ~kept).sum()
        total = torch.stack([_REDUCE[reduction](observed, kept), kept.sum().double(), left_out.double()])
        if total.is_cpu or reduction == "last":  # the last of several has to be known in order
            self._fold(key, tuple(total.tolist()))
        else:
            self._on_device.append((key, total))

    def add_all(self, key: str, values: Sequence[float]) -> None:
        """Add every number of `values` as an observation of `key`, as one call of `add` for each would.

        Raises KeyError: `key` is not declared.
        """
        reduction = declared(key).reduction
        usable = [value for value in values if math.isfinite(value)]
        if usable:
            self._fold(key, (_REDUCE_ALL[reduction](usable), float(len(usable)), 0.0))
        if len(usable) < len(values):
            self._fold(key, (0.0, 0.0, float(len(values) - len(usable))))

    def merge(self, other: Metrics, off_policy: bool = False) -> None:
        """Add all observations of `other`; its "last" ones come after this one's.

        `off_policy`: they were made after the weights had moved, so metrics declared `on_policy` are left out.
        """
        other._fetch()
        for key, total in other._totals.items():
            if not (off_policy and declared(key).on_policy):
                self._fold(key, total)

    def result(self) -> dict[str, float]:
        """Return one float per key; a key without any observation is absent."""
        self._fetch()
        result = {
            key: value / count if declared(key).reduction == "mean" else value
            for key, (value, count, _) in self._totals.items()
            if count > 0
        }
        left_out = sum(nonfinite for _, _, nonfinite in self._totals.values())
        overflowed = [key for key, value in result.items() if not math.isfinite(value)]
        for key in overflowed:
            del result[key]
        left_out += len(overflowed)
        if left_out:
            result["metrics/nonfinite"] = result.get("metrics/nonfinite", 0.0) + left_out
        return result

    def _fetch(self) -> None:
        """Fetch what was reduced on an accelerator, in one transfer."""
        if self._on_device:
            totals = torch.stack([total for _, total in self._on_device]).tolist()
            for (key, _), total in zip(self._on_device, totals, strict=True):
                self._fold(key, tuple(total))
            self._on_device.clear()

    def _fold(self, key: str, new: _Total) -> None:
        """Join a total to the present one; a total without observations changes only the number of those left out."""
        old = self._totals.get(key, (0.0, 0.0, 0.0))
        if new[1] > 0 and old[1] > 0:
            value = _JOIN[declared(key).reduction](old[0], new[0])
        else:
            value = new[0] if new[1] > 0 else old[0]
        self._totals[key] = (value, old[1] + new[1], old[2] + new[2])


_Total = tuple[float, ...]
"""(sum, maximum or last observation; number of observations; number left out because they were not finite)."""


def _sum(observed: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept, observed, 0.0).sum()


def _max(observed: Tensor, kept: Tensor) -> Tensor:
    lowest = observed.new_full((1,), -torch.inf)
    return torch.cat([torch.where(kept, observed, -torch.inf).reshape(-1), lowest]).max()


def _last(observed: Tensor, kept: Tensor) -> Tensor:
    places = torch.arange(1, kept.numel() + 1, device=kept.device) * kept.reshape(-1)
    padded = torch.cat([observed.new_zeros(1), torch.where(kept, observed, 0.0).reshape(-1)])
    return padded[torch.cat([places.new_zeros(1), places]).max()]


def _sum_all(values: Sequence[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


_REDUCE = {"mean": _sum, "sum": _sum, "max": _max, "last": _last}
_REDUCE_ALL: dict[str, Callable[[Sequence[float]], float]]
_REDUCE_ALL = {"mean": _sum_all, "sum": _sum_all, "max": max, "last": itemgetter(-1)}
_JOIN: dict[str, Callable[[float, float], float]]
_JOIN = {"mean": add, "sum": add, "max": max, "last": lambda _, later: later}
