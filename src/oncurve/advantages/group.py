"""Group-relative outcome advantages: a completion is graded against its siblings, no critic needed.

    Â_it = (r_i - mean r) / (std r + eps)    for every token t of completion i

Source: DeepSeekMath, arXiv:2402.03300, section 4.1.2. Without the division: Dr.GRPO, arXiv:2503.20783. With the
standard deviation of the whole batch: arXiv:2508.08221.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from oncurve.ops import segment_count, segment_max, segment_mean, segment_min, segment_sum
from oncurve.spec import Component
from oncurve.types import TrainBatch

__all__ = ["GroupAdvantage", "Scale", "constant_groups", "group_advantages"]

Scale = Literal["group", "batch", "none"]

LEAST_VALID = 2
_ZERO_STD = 1e-8
_LARGEST_TO_SQUARE = 1e140


def group_advantages(
    rewards: Tensor, valid: Tensor, group_ids: Tensor, scale: Scale = "group", ddof: int = 1, eps: float = 1e-6
) -> Tensor:
    """Advantage of each completion among the valid completions of its group, in float64.

    rewards (B,)   valid (B,) bool   group_ids (B,) int64, groups may be of any sizes   returns (B,) float64

        scale "group":  (r - mean) / (std_group + eps)      std with `ddof` (1: Bessel's correction)
        scale "batch":  (r - mean) / (std_batch + eps)      std of all valid rewards of the batch's usable groups
        scale "none":   r - mean

    Exactly 0: invalid completions (they take no part in any statistic); groups with fewer than two valid
    completions (the trainer drops them, so they are in no statistic either); groups whose rewards are all the same,
    which max = min decides (a mean of eight times 0.7 is not 0.7 in floating point, and its error over its std would
    be an advantage). With `eps` 0 also where std < 1e-8.

    Raises ValueError: a group of one completion, which has no siblings; shapes that differ; non-finite valid rewards;
    `ddof` not 0 or 1; negative `eps`.
    """
    if not rewards.shape == valid.shape == group_ids.shape or rewards.ndim != 1:
        shapes = [tuple(x.shape) for x in (rewards, valid, group_ids)]
        raise ValueError(f"rewards, valid and group_ids must be of one shape (B,), got {shapes}")
    if ddof not in (0, 1) or not eps >= 0:
        raise ValueError(f"ddof must be 0 or 1 and eps >= 0, got {ddof} and {eps}")
    if not rewards.numel():
        return rewards.to(torch.float64)
    if scale != "none" and float(torch.where(valid, rewards, 0.0).abs().max()) > _LARGEST_TO_SQUARE:
        return _of_huge_rewards(rewards, valid, group_ids, scale, ddof, eps)
    even = _of_even_groups(rewards, valid, group_ids, scale, ddof, eps)
    if even is not None:
        return even
    groups = int(group_ids.max()) + 1
    if bool((torch.bincount(group_ids, minlength=groups) == 1).any()):
        raise ValueError("a group of one completion has no siblings to be graded against; group_size must be >= 2")
    r = torch.where(valid, rewards.to(torch.float64), 0.0)
    if not bool(r.isfinite().all()):
        raise ValueError("a valid reward is NaN or infinite")
    usable = valid & (segment_count(valid, group_ids, groups) >= LEAST_VALID)[group_ids]
    graded = usable & ~constant_groups(rewards, valid, group_ids)[group_ids]
    centred = torch.where(graded, r - segment_mean(r, group_ids, groups, valid)[group_ids], 0.0)
    if scale == "none":
        return centred
    std = _std(r, usable, group_ids if scale == "group" else torch.zeros_like(group_ids), ddof)
    divided = graded & (std >= (_ZERO_STD if eps == 0 else 0.0))
    return torch.where(divided, centred / torch.where(divided, std + eps, 1.0), 0.0)


def _of_huge_rewards(rewards: Tensor, valid: Tensor, group_ids: Tensor, scale: Scale, ddof: int, eps: float) -> Tensor:
    """The advantages `(B,)` where squares would overflow: a group's do not change when a power of two divides it.

    Beside a deviation of that size `eps` is nothing; groups whose rewards can be squared are as ever.
    """
    r = torch.where(valid, rewards.to(torch.float64), 0.0)
    segments = group_ids if scale == "group" else torch.zeros_like(group_ids)
    largest = segment_max(r.abs(), segments, int(segments.max()) + 1)[segments]
    huge = largest > _LARGEST_TO_SQUARE
    divided = torch.where(huge, r / largest.clamp(min=1.0).log2().floor().exp2(), 0.0)
    of_huge = group_advantages(divided, valid, group_ids, scale, ddof, 0.0)
    return of_huge + group_advantages(torch.where(huge, 0.0, r), valid, group_ids, scale, ddof, eps)


def _of_even_groups(
    rewards: Tensor, valid: Tensor, group_ids: Tensor, scale: Scale, ddof: int, eps: float
) -> Tensor | None:
    """The advantages `(B,)` of the usual batch: every completion valid, groups 0, 1, ... of one size, row after row.

    They are the rows of a matrix, and a dozen operations on it do what segments need forty for. None where the batch
    is not like that, or where something in it is not finite: the general way says what.

    Each group is counted from its first reward. So a constant group is exactly 0 throughout, whatever its value.
    """
    groups = int(group_ids[-1]) + 1
    size = rewards.numel() // max(1, groups)
    if size < LEAST_VALID or groups * size != rewards.numel() or int(valid.count_nonzero()) != rewards.numel():
        return None
    numbers = torch.arange(groups, device=group_ids.device, dtype=group_ids.dtype)[:, None]
    if not torch.equal(group_ids.reshape(groups, size), numbers.expand(groups, size)):
        return None
    r = rewards.to(torch.float64).reshape(groups, size)
    centred = r - r[:, :1]
    # Sums of rows as short as these take three times as long as a product with ones.
    centred -= centred.mv(centred.new_ones(size)).div_(size).unsqueeze_(1)
    std = torch.linalg.vector_norm(centred, dim=1, keepdim=True).mul_((size - ddof) ** -0.5)
    if not math.isfinite(float(std.sum())):
        return None
    if scale == "none":
        return centred.view(-1)
    if scale == "batch":
        std = (r - r[0, 0]).std(correction=ddof)
    if eps == 0:
        return torch.where(std >= _ZERO_STD, centred / std.clamp(min=_ZERO_STD), 0.0).view(-1)
    return centred.div_(std.add_(eps)).view(-1)


def _std(r: Tensor, valid: Tensor, segments: Tensor, ddof: int) -> Tensor:
    """Standard deviation `(B,)` of the valid rewards in each row's segment, in two passes; 0 for too few of them."""
    count = int(segments.max()) + 1
    deviation = torch.where(valid, r - segment_mean(r, segments, count, valid)[segments], 0.0)
    squares = segment_sum(deviation.square(), segments, count)
    return (squares / (segment_count(valid, segments, count) - ddof).clamp(min=1)).sqrt()[segments]


def constant_groups(rewards: Tensor, valid: Tensor, group_ids: Tensor) -> Tensor:
    """Which groups have no two different valid rewards, `(groups,)` bool: they teach nothing. Shapes as above.

    A group without any valid reward is constant too.
    """
    groups = int(group_ids.max()) + 1 if group_ids.numel() else 0
    r = rewards.to(torch.float64)
    highest = segment_max(torch.where(valid, r, -torch.inf), group_ids, groups)
    lowest = segment_min(torch.where(valid, r, torch.inf), group_ids, groups)
    return highest <= lowest


class GroupAdvantage(Component):
    """Settings of the group-relative outcome advantage (`kind = "grpo"`); see `group_advantages`.

    scale   what the centred reward is divided by: std of its "group" (GRPO), of the "batch", or "none" (Dr.GRPO)
    ddof    1: sample standard deviation (Bessel), 0: population
    eps     added to the standard deviation; 0 makes a group with std < 1e-8 exactly 0
    """

    scale: Scale = "group"
    ddof: Literal[0, 1] = 1
    eps: float = Field(default=1e-6, ge=0)

    needs: ClassVar[frozenset[str]] = frozenset({"siblings"})
    """Other completions of the same prompt."""

    @property
    def least_valid(self) -> int:
        """Valid completions that a group needs; the trainer drops and counts smaller ones."""
        return LEAST_VALID

    def __call__(self, batch: TrainBatch) -> Tensor:
        """The completion's advantage at each of its tokens, 0 beyond: `(B, T)` float64."""
        per_row = group_advantages(batch.rewards, batch.valid, batch.group_ids, self.scale, self.ddof, self.eps)
        return per_row[:, None] * batch.existing()
