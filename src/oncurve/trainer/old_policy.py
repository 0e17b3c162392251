"""The old policy, which a step's updates begin with, and the policy that sampled: log-probs and weights."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from oncurve.base.errors import ConfigError
from oncurve.components import check_per_token
from oncurve.learner import Learner
from oncurve.losses import Correction, ImportanceWeights, NoCorrection, corrects, top_entropy
from oncurve.metrics import Metrics
from oncurve.types import TrainBatch


@dataclass(frozen=True)
class OldPolicy:
    """Scores a batch with the learner before its first update.

    single       one update per rollout: the ratio is 1 where sampler and learner are the same policy
    recorded     the sampler's log-probs are used as the old ones throughout (`learner.old_logprobs` = "rollout")
    correction   weighs what another policy than the old one has sampled
    top_entropy  the share of the trained tokens, those of the highest entropy, that the objective counts
    """

    single: bool = True
    recorded: bool = False
    correction: Correction = field(default_factory=NoCorrection)
    top_entropy: float = 1.0

    def score(
        self, batch: TrainBatch, learner: Learner, exact: bool, metrics: Metrics, entropy: bool = False
    ) -> TrainBatch:
        """Return the batch with the learner's statistics, `old_logprobs` and `policy_weights`, `(B, T)`, where they
        matter.

        exact     the engine's recorded log-probs are those of the weights that sampled, up to rounding;
        entropy   it is wanted of the same pass, where the learner computes the old log-probs of all rows: a batch that
                  is returned with both has the learner's of both.

        Old log-probs matter wherever the ratio to them can leave 1. For completions by the present weights the learner
        computes them. For completions by older weights they are those that the sampler recorded; with a correction the
        learner's, and the weights are for the difference. Raises ConfigError: a part returned something else.
        """
        assert batch.policy_versions is not None  # set by `collate`
        present = batch.policy_versions == learner.version
        all_present = bool(present.all())
        same = present & exact  # sampler and learner are the same policy: weights are 1
        corrected = corrects(self.correction) and not (exact and all_present)
        none_needed = self.single and exact and all_present
        recorded = self.recorded or not (corrected or bool(present.any()))
        whole = not (none_needed or recorded) and (corrected or all_present)
        wanted = {"old": not (none_needed or recorded), "entropy": self.top_entropy < 1 or (entropy and whole)}
        want = {"reference", "teacher", "values"} | {name for name, on in wanted.items() if on}
        batch = learner.score(batch, frozenset(want))
        if recorded and not none_needed:
            batch = batch.having(old_logprobs=_recorded(batch))
        elif not (none_needed or corrected or all_present):
            batch = batch.having(old_logprobs=torch.where(present[:, None], *_both(batch)))
        weights = self._corrected(batch, same, metrics) if corrected else None
        if self.top_entropy < 1:
            weights = self._of_top_entropy(batch, learner, weights)
        own = whole or batch.old_logprobs is None
        return batch.having(policy_weights=weights, entropy=batch.entropy if own else None)

    def _corrected(self, batch: TrainBatch, same: Tensor, metrics: Metrics) -> Tensor:
        """Return weights `(B, T)` of π_old/μ, 1 in the rows that are `same`; they are observed."""
        old, rollout = _both(batch)
        shape, mask = batch.loss_mask.shape, batch.loss_mask
        found: object = self.correction(torch.where(mask, old - rollout, 0.0), mask)
        name = type(self.correction).__name__
        if not isinstance(found, ImportanceWeights):
            raise ConfigError(
                f"correction.kind: {name} must return an oncurve.losses.ImportanceWeights; it returned {found!r:.80}"
            )
        ratios, used = (
            torch.where(mask & ~same[:, None], check_per_token(part, shape, "correction.kind", f"{name}: weights"), 1.0)
            for part in (found.ratios, found.used)
        )
        metrics.add("correction/weight", ratios, mask)
        metrics.add("correction/weight_max", ratios, mask)
        metrics.add("correction/bounded", (ratios != used).double(), mask)
        total, squares = used[mask].sum(), used[mask].square().sum()
        if squares > 0:
            metrics.add("correction/effective_sample_size", float(total.square() / (squares * mask.sum())))
        return used

    def _of_top_entropy(self, batch: TrainBatch, learner: Learner, weights: Tensor | None) -> Tensor:
        """Return the weights `(B, T)`, 0 at tokens that are not of the highest entropy."""
        if batch.entropy is None:
            raise ConfigError(
                f"filter.top_entropy: {type(learner).__name__}.score left out the entropy; where `want` has "
                '"entropy" it must return a batch with entropy (B, T)'
            )
        kept = top_entropy(batch.entropy, batch.loss_mask, self.top_entropy)
        return kept.double() if weights is None else torch.where(kept, weights, 0.0)


def _recorded(batch: TrainBatch) -> Tensor:
    assert batch.rollout_logprobs is not None  # set by `collate`
    return batch.rollout_logprobs


def _both(batch: TrainBatch) -> tuple[Tensor, Tensor]:
    """Return the learner's log-probs and the sampler's, in the dtype of these."""
    assert batch.old_logprobs is not None
    recorded = _recorded(batch)
    return batch.old_logprobs.to(recorded.dtype), recorded
