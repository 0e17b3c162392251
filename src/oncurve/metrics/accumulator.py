"""The accumulator: observations in, one number a key out."""

from __future__ import annotations

import torch
from torch import Tensor

from oncurve.metrics.table import declared

__all__ = ["Metrics"]


class Metrics:
    """Observations by declared key, kept as (sum, count), a maximum, or the last one.

        metrics = Metrics()
        metrics.add("entropy", streams.entropy, micro.loss_mask)     # every trained token is an observation
        metrics.add("grad_norm", 0.7)                                # one observation
        metrics.add("reward", 12.0, count=32)                        # the sum of 32 observations
        metrics.merge(metrics_of_another_micro_batch)
        metrics.result()["entropy"]

    Merging is exact: the result is that of all observations together, in whatever pieces they came. Observations that
    are NaN or infinite are left out and counted in `nonfinite_values`. Tensors stay on their device until `result()`,
    so adding does not wait for the device.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}  # key -> (value, count, left out), float64

    def add(self, key: str, values: Tensor | float, mask: Tensor | None = None, *, count: float | None = None) -> None:
        """Adds the elements of `values` (those where `mask` is True) as observations of `key`.

        With `count`, `values` is one number: the sum of that many observations (for "mean" and "sum" only).
        Raises KeyError: `key` is not declared. ValueError: `mask` of another shape, a misplaced `count`.
        """
        reduction = declared(key).reduction
        observed = torch.as_tensor(values).detach().to(torch.float64)
        if mask is not None and mask.shape != observed.shape:
            raise ValueError(f"{key}: mask {tuple(mask.shape)} does not fit values {tuple(observed.shape)}")
        if count is not None and (observed.numel() != 1 or mask is not None or reduction not in ("mean", "sum")):
            raise ValueError(f"{key}: `count` goes with one number, no mask, and the reductions mean and sum")
        asked = torch.ones_like(observed, dtype=torch.bool) if mask is None else mask.bool()
        kept = asked & observed.isfinite()
        number = kept.sum() if count is None else kept.sum() * count
        value = _REDUCE[reduction](observed, kept)
        self._fold(key, torch.stack([value, number.to(torch.float64), (asked & ~kept).sum().to(torch.float64)]))

    def merge(self, other: Metrics) -> None:
        """Adds all observations of `other`, which is left as it was; its "last" ones come after this one's."""
        for key, total in other._totals.items():
            self._fold(key, total)

    def _fold(self, key: str, new: Tensor) -> None:
        old = self._totals.get(key)
        if old is None:
            self._totals[key] = new
            return
        new = new.to(old.device)
        value = _JOIN[declared(key).reduction](old, new)
        self._totals[key] = torch.cat([value.reshape(1), old[1:] + new[1:]])

    def result(self) -> dict[str, float]:
        """One float a key, in the order in which keys were first added; a key without any observation is absent."""
        result: dict[str, float] = {}
        left_out = 0.0
        for key, total in self._totals.items():
            value, count, nonfinite = total.tolist()
            left_out += nonfinite
            if count > 0:
                result[key] = value / count if declared(key).reduction == "mean" else value
        if left_out:
            result["nonfinite_values"] = result.get("nonfinite_values", 0.0) + left_out
        return result


def _sum(observed: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept, observed, 0.0).sum()


def _max(observed: Tensor, kept: Tensor) -> Tensor:
    lowest = observed.new_full((1,), -torch.inf)
    return torch.cat([torch.where(kept, observed, -torch.inf).reshape(-1), lowest]).max()


def _last(observed: Tensor, kept: Tensor) -> Tensor:
    places = torch.arange(1, kept.numel() + 1, device=kept.device) * kept.reshape(-1)
    padded = torch.cat([observed.new_zeros(1), torch.where(kept, observed, 0.0).reshape(-1)])
    return padded[torch.cat([places.new_zeros(1), places]).max()]


def _join_last(old: Tensor, new: Tensor) -> Tensor:
    return torch.where(new[1] > 0, new[0], old[0])


_REDUCE = {"mean": _sum, "sum": _sum, "max": _max, "last": _last}
_JOIN = {
    "mean": lambda old, new: old[0] + new[0],
    "sum": lambda old, new: old[0] + new[0],
    "max": lambda old, new: torch.maximum(old[0], new[0]),
    "last": _join_last,
}
