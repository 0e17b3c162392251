"""Process supervision: every step of a completion is scored relative to all steps of its group.

    r̃_ij = (r_ij - mean R) / (std R + eps)      R: the rewards of all steps j of all completions i of the group
    Â_it = Σ_{j: index(j) >= t} r̃_ij            a token has the sum of the steps that end at it or after it

Source: DeepSeekMath, arXiv:2402.03300, section 4.1.3. Tokens after a completion's last step get 0. With one step per
completion, ending at its last token, this is outcome supervision (`group.py`), exactly.
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oncurve.advantages.group import GroupAdvantage, Scale, group_advantages
from oncurve.components import Equation
from oncurve.types import TrainBatch


def process_advantages(
    step_rewards: Float[Tensor, "B S"],
    step_ends: Int[Tensor, "B S"],
    step_counts: Int[Tensor, "B"],
    valid: Bool[Tensor, "B"],
    group_ids: Int[Tensor, "B"],
    length: int,
    scale: Scale = "group",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, "B {length}"]:
    """Return the advantage of each token, `(B, T)` float64.

    step_rewards (B, S)         of each step; beyond `step_counts` nothing is read
    step_ends    (B, S) int64   the index of each step's last token, in 0..T-1; equal ones are allowed, any order
    step_counts  (B,)   int64   0: the completion has no steps, takes no part, and gets 0
    valid        (B,)   bool    False: takes no part, and gets 0
    group_ids    (B,)   int64
    length       T
    scale, ddof, eps            as in `group_advantages`, over steps in the place of completions

    A group whose step rewards are all the same is exactly 0, and so is one with a single step in all.

    Raises ValueError: shapes that differ; a step that ends outside its row; what `group_advantages` raises.
    """
    rows, most = step_rewards.shape
    if step_ends.shape != (rows, most) or not step_counts.shape == valid.shape == group_ids.shape == (rows,):
        shapes = [tuple(x.shape) for x in (step_rewards, step_ends, step_counts, valid, group_ids)]
        raise ValueError(f"step rewards and ends (B, S), counts, valid and group_ids (B,) do not fit: {shapes}")
    exists = (torch.arange(most, device=step_counts.device)[None, :] < step_counts[:, None]) & valid[:, None]
    row_of, column_of = exists.nonzero(as_tuple=True)
    ends = step_ends[row_of, column_of]
    if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < length:
        raise ValueError(f"steps end at tokens 0 to {length - 1} of a row, got {int(ends.min())} to {int(ends.max())}")
    groups = group_ids[row_of]
    # A group's only step gets 0, like a completion without siblings, which the trainer drops.
    compared = torch.bincount(groups, minlength=1)[groups] > 1
    row_of, ends, groups = row_of[compared], ends[compared], groups[compared]
    rewards = step_rewards[exists][compared]
    normalised = group_advantages(rewards, torch.ones_like(groups, dtype=torch.bool), groups, scale, ddof, eps)
    at_ends = torch.zeros(rows, length, dtype=torch.float64, device=step_rewards.device)
    at_ends.index_put_((row_of, ends), normalised, accumulate=True)
    return at_ends.flip(1).cumsum(1).flip(1)


class ProcessAdvantage(GroupAdvantage):
    """Process supervision (`kind = "process"`): the fields of `kind = "grpo"`, over the rewards of all steps of a
    group.

    A completion whose steps have no scores is one step, which ends at its last token and has the completion's reward.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"siblings", "steps"})
    """Other completions of the same prompt, and rewards of their steps."""

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return each token's advantage, 0 after the last step: `(B, T)` float64."""
        ends, rewards, counts = batch.lengths[:, None] - 1, batch.rewards[:, None], torch.ones_like(batch.lengths)
        if batch.step_ends is not None and batch.step_rewards is not None and batch.step_counts is not None:
            scored = batch.step_counts > 0
            width = batch.step_ends.shape[1]
            ends = torch.where(scored[:, None], batch.step_ends, ends.expand(-1, width))
            rewards = torch.where(scored[:, None], batch.step_rewards, rewards.expand(-1, width))
            counts = torch.where(scored, batch.step_counts, counts)
        length = batch.completion_ids.shape[1]
        return process_advantages(
            rewards, ends, counts, batch.valid, batch.group_ids, length, self.scale, self.ddof, self.eps
        )

    def describe(self) -> Equation:
        """Return the step rewards relative to those of the group, summed from each token on."""
        normalised = "r_ij - mean R, R the rewards of all steps in its group of G"
        if self.scale != "none":
            over = ", the std over the batch's steps" if self.scale == "batch" else ""
            normalised = normalised.replace("r_ij - mean R", f"(r_ij - mean R) / ({self._divisor('R')})")
            normalised += f"{over} (ddof {self.ddof})"
        legend = {"r̃_ij": normalised, "r_ij": "the reward of step j of completion i"}
        return Equation("Σ_j r̃_ij over the steps j of completion i that end at token t or after it", legend)
