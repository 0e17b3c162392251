"""The teacher of a distillation: a frozen model, or the policy itself, which scores what the policy sampled."""

from __future__ import annotations

import torch

from oncurve.learner.budget import Budget
from oncurve.learner.reference import Reference
from oncurve.learner.scoring import scored_stats
from oncurve.models import CausalModel
from oncurve.types import TrainBatch


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
