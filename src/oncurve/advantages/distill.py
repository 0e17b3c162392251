"""Distillation as an advantage: each token is worth by how much the teacher likes it more than the policy does.

    Â_it = w (log π_T(o_it) - log π_old(o_it)) + A_it

π_T is the teacher, w its weight, and A_it another kind of advantage, if there is one (`base`). On-policy, the expected
gradient of Σ_t Â_it log π_θ(o_it) without A_it is -w ∇ Σ_t KL(π_θ || π_T): of the reverse KL at each position, given
the tokens before it.

Source: on-policy distillation, Agarwal et al., arXiv:2306.13649 (reverse KL on the student's own samples); with the
sampled token's log-ratio as a policy gradient's advantage: Thinking Machines Lab, "On-Policy Distillation", 2025.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field, SerializeAsAny
from torch import Tensor

from oncurve.components import Component, Equation, Impossible, described, stated
from oncurve.types import AdvantagesAndReturns, TrainBatch


def distillation_advantages(
    teacher_logprobs: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """log π_T - log π at the sampled tokens, `(B, T)` float64, without a gradient; 0 where `mask` is False.

    teacher_logprobs (B, T), logprobs (B, T)   in nats; anything where `mask` is False, NaN too
    """
    gap = teacher_logprobs.detach().to(torch.float64) - logprobs.detach().to(torch.float64)
    return torch.where(mask, gap, 0.0)


class Distill(Component):
    """On-policy distillation (`kind = "distill"`): the teacher's log-prob of each token, less the policy's."""

    nested: ClassVar[tuple[str, ...]] = ("base",)

    teacher: str | None = Field(default=None, min_length=1)
    """The teacher: a directory in Hugging Face form, or a hub id; its tokenizer must be the policy's. None: the policy
    itself, as it is in each step, which then reads `template`."""

    template: str | None = Field(default=None, min_length=1)
    """The prompt as the teacher reads it, made from the row's columns: `"{question}\\nA solution: {answer}"`. None: the
    policy's prompt."""

    weight: float = Field(default=1.0, gt=0)
    """w, what the distillation is multiplied by."""

    base: SerializeAsAny[Component] | None = None
    """Another kind of advantage, which is added: `{kind = "grpo", scale = "none"}`, or its name alone. None: no reward
    is needed."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda advantage: "teacher" in getattr(advantage.base, "needs", ()),
            "advantage.base: a run has one teacher, which advantage.kind has already; choose a kind that reads rewards",
        ),
    )

    @property
    def needs(self) -> frozenset[str]:
        """The teacher's log-probs, and what `base` needs."""
        return frozenset({"teacher"}) | getattr(self.base, "needs", frozenset())

    @property
    def min_valid_completions(self) -> int:
        """Return what `base` needs of a group; 1 without it."""
        return getattr(self.base, "min_valid_completions", 1)

    @property
    def reads_rewards(self) -> bool:
        """Return whether there is a `base` that reads them."""
        return self.base is not None and bool(stated(self.base, "reads_rewards", True))

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"] | AdvantagesAndReturns:
        """Return the advantages `(B, T)` float64, with the returns of `base` where it gives them.

        π_old is the policy that sampled: `old_logprobs`, or where the ratio to them is 1 the sampler's own record.

        Raises ValueError: the batch has no `teacher_logprobs`, or no log-probs of the policy that sampled it.
        """
        old = batch.old_logprobs if batch.old_logprobs is not None else batch.rollout_logprobs
        if batch.teacher_logprobs is None or old is None:
            raise ValueError("distillation needs the batch's teacher_logprobs, and old_logprobs or rollout_logprobs")
        own = self.weight * distillation_advantages(batch.teacher_logprobs, old, batch.loss_mask)
        if self.base is None:
            return own
        added: Any = self.base
        found: Tensor | AdvantagesAndReturns = added(batch)
        if isinstance(found, AdvantagesAndReturns):
            return AdvantagesAndReturns(own + found.advantages, found.returns)
        return own + found

    def describe(self) -> Equation:
        """Return the log-ratio of teacher to policy, and the advantage that is added to it."""
        weight = f"{self.weight:g} " if self.weight != 1 else ""
        whose = self.teacher or "the policy itself"
        reads = f", which reads {self.template!r}" if self.template is not None else ""
        term, legend = f"{weight}(log π_T - log π_old) at the token", {"π_T": f"the teacher: {whose}{reads}"}
        if self.base is None:
            return Equation(term, legend)
        base = described(self.base)
        return Equation(f"{term} + A_it", {**legend, "A_it": base.term, **base.legend})
