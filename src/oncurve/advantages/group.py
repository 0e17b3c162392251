"""Group-relative outcome advantages: a completion is compared with its siblings, no critic needed.

    Â_it = (r_i - mean r) / (std r + eps)    for every token t of completion i

Source: DeepSeekMath, arXiv:2402.03300, section 4.1.2. Without the division: Dr.GRPO, arXiv:2503.20783. With the
standard deviation of the whole batch: arXiv:2508.08221.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from oncurve.components import Component, Equation, Inert
from oncurve.ops import segment_count, segment_max, segment_mean, segment_min, segment_sum
from oncurve.types import TrainBatch

Scale = Literal["group", "batch", "none"]

MIN_VALID = 2
_ZERO_STD = 1e-8
_LARGEST_TO_SQUARE = 1e140


def group_advantages(
    rewards: Float[Tensor, "B"],
    valid: Bool[Tensor, "B"],
    group_ids: Int[Tensor, "B"],
    scale: Scale = "group",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, "B"]:
    """Return advantage of each completion among the valid completions of its group, in float64.

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
    groups = int(group_ids.max()) + 1
    if bool((torch.bincount(group_ids, minlength=groups) == 1).any()):
        raise ValueError("a group of one completion has no siblings to be compared with; group_size must be >= 2")
    r = torch.where(valid, rewards.to(torch.float64), 0.0)
    if not bool(r.isfinite().all()):
        raise ValueError("a valid reward is NaN or infinite")
    usable = valid & (segment_count(valid, group_ids, groups) >= MIN_VALID)[group_ids]
    differing = usable & ~constant_groups(rewards, valid, group_ids)[group_ids]
    centred = torch.where(differing, r - segment_mean(r, group_ids, groups, valid)[group_ids], 0.0)
    if scale == "none":
        return centred
    std = _std(r, usable, group_ids if scale == "group" else torch.zeros_like(group_ids), ddof)
    divided = differing & (std >= (_ZERO_STD if eps == 0 else 0.0))
    return torch.where(divided, centred / torch.where(divided, std + eps, 1.0), 0.0)


def _of_huge_rewards(rewards: Tensor, valid: Tensor, group_ids: Tensor, scale: Scale, ddof: int, eps: float) -> Tensor:
    """Return the advantages `(B,)` where squares would overflow: a group's do not change when a power of two divides
    it.

    Relative to a deviation of that size `eps` is negligible; groups whose rewards can be squared are unchanged.
    """
    r = torch.where(valid, rewards.to(torch.float64), 0.0)
    segments = group_ids if scale == "group" else torch.zeros_like(group_ids)
    largest = segment_max(r.abs(), segments, int(segments.max()) + 1)[segments]
    huge = largest > _LARGEST_TO_SQUARE
    divided = torch.where(huge, r / largest.clamp(min=1.0).log2().floor().exp2(), 0.0)
    of_huge = group_advantages(divided, valid, group_ids, scale, ddof, 0.0)
    return of_huge + group_advantages(torch.where(huge, 0.0, r), valid, group_ids, scale, ddof, eps)


def _std(r: Tensor, valid: Tensor, segments: Tensor, ddof: int) -> Tensor:
    """Return standard deviation `(B,)` of the valid rewards in each row's segment, in two passes; 0 for too few of
    them.
    """
    count = int(segments.max()) + 1
    deviation = torch.where(valid, r - segment_mean(r, segments, count, valid)[segments], 0.0)
    squares = segment_sum(deviation.square(), segments, count)
    return (squares / (segment_count(valid, segments, count) - ddof).clamp(min=1)).sqrt()[segments]


def constant_groups(
    rewards: Float[Tensor, "B"], valid: Bool[Tensor, "B"], group_ids: Int[Tensor, "B"]
) -> Bool[Tensor, "G"]:
    """Return which groups have no two different valid rewards, `(groups,)` bool: they teach nothing. Shapes as above.

    A group without any valid reward is constant too.
    """
    groups = int(group_ids.max()) + 1 if group_ids.numel() else 0
    r = rewards.to(torch.float64)
    highest = segment_max(torch.where(valid, r, -torch.inf), group_ids, groups)
    lowest = segment_min(torch.where(valid, r, torch.inf), group_ids, groups)
    return highest <= lowest


class OutcomeAdvantage(Component):
    """The base of advantages that compare a completion with its group and are the same at each of its tokens."""

    needs: ClassVar[frozenset[str]] = frozenset({"siblings"})
    """Other completions of the same prompt."""

    min_valid_completions: ClassVar[int] = MIN_VALID
    """Valid completions that a group needs; the trainer drops and counts smaller ones."""

    def per_completion(self, batch: TrainBatch) -> Float[Tensor, "B"]:
        """Return the advantage of each completion, `(B,)` float64."""
        raise TypeError(f"{type(self).__name__} must define per_completion(batch)")

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return the completion's advantage at each of its tokens, 0 beyond: `(B, T)` float64."""
        return self.per_completion(batch)[:, None] * batch.existing()


class GroupAdvantage(OutcomeAdvantage):
    """The group-relative outcome advantage (`kind = "grpo"`)."""

    scale: Scale = "group"
    """What the centred reward is divided by: std of its "group" (GRPO), of the "batch", or "none" (Dr.GRPO)."""

    ddof: Literal[0, 1] = 1
    """1: sample standard deviation (Bessel's correction); 0: population."""

    eps: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation; 0 makes the advantages of a group with std < 1e-8 exactly 0."""

    inert: ClassVar[tuple[Inert, ...]] = (
        Inert(
            ("advantage.ddof", "advantage.eps"),
            ("advantage.scale",),
            lambda advantage: advantage.scale == "none",
            'advantage.scale = "none" divides by no standard deviation',
        ),
    )

    def per_completion(self, batch: TrainBatch) -> Float[Tensor, "B"]:
        """Return `group_advantages` of the batch's rewards, `(B,)` float64."""
        return group_advantages(batch.rewards, batch.valid, batch.group_ids, self.scale, self.ddof, self.eps)

    def describe(self) -> Equation:
        """Return the completion's reward relative to its group."""
        if self.scale == "none":
            return Equation("r_i - mean r, the mean of its group of G")
        of = (
            "mean and std of its group of G"
            if self.scale == "group"
            else "the mean of its group of G, the std of the batch"
        )
        return Equation(f"(r_i - mean r) / ({self._divisor('r')}), {of} (ddof {self.ddof})")

    def _divisor(self, rewards: str) -> str:
        return f"std {rewards} + {self.eps:g}" if self.eps else f"std {rewards}"
