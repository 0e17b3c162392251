"""The critic with weights of its own: a copy of the policy's network with a value head, and its optimizer."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from oncurve.base.errors import ModelError
from oncurve.batching import micro_batches
from oncurve.learner.budget import Budget
from oncurve.learner.optimizer.sparse import sparse_embeddings
from oncurve.learner.optimizer.update import MasterAdamW
from oncurve.learner.policy import LocalLearner
from oncurve.learner.protocol import UpdateResult
from oncurve.learner.values import ValueReader, blank_head
from oncurve.losses import ValueLoss
from oncurve.metrics import Metrics
from oncurve.types import TrainBatch


class _ValueNetwork(nn.Module):
    """Backbone and head as one module, for the optimizer."""

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head


class OwnCritic:
    """A value function with weights of its own. It has the policy's optimizer settings, except the learning rate."""

    def __init__(self, actor: LocalLearner, learning_rate: float, loss: ValueLoss) -> None:
        """Copy the actor's model, of one with an adapter the adapter alone: both share the frozen base.

        Raises ModelError where the model cannot be copied.
        """
        policy = actor.model
        base = [] if policy.adapter is None else actor.optimizer.frozen.values()
        try:
            model = copy.deepcopy(policy, {id(parameter): parameter for parameter in base})
        except Exception as error:
            raise ModelError(f"{type(policy.module).__name__} cannot be copied for the critic ({error})") from error
        _freeze_head(model.module)
        self._network = _ValueNetwork(model.module, blank_head(model))
        settings = actor.config
        self.optimizer = MasterAdamW(self._network, None, **settings.adamw, has_base=policy.adapter is not None)
        self._rate, self._max_norm, self._loss = learning_rate, settings.max_grad_norm, loss
        self.budget = Budget(settings.tokens_per_micro_batch, policy.free_decoding)
        self.reader = ValueReader(model, self._network.head, self.budget)

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """Return one step towards the batch's `returns`, on its `token_weights`.

        Nothing changes where loss or gradient is not finite. Raises ValueError for a batch without these fields.
        """
        if minibatch.token_weights is None:
            raise ValueError("an update needs token_weights: batch.with_weights(…) first")
        loss, metrics = self.budget.fit(lambda tokens: self._accumulate(minibatch, tokens), minibatch)
        norm = self.optimizer.gradient_norm()
        if reason := self.optimizer.refusal(loss, norm):
            return UpdateResult.skip(f"critic: {reason}")
        self.optimizer.step(self._rate, norm, self._max_norm)
        metrics.add("critic/grad_norm", norm)
        return UpdateResult(metrics)

    def _accumulate(self, batch: TrainBatch, tokens: int) -> tuple[float, Metrics]:
        metrics, total = Metrics(), 0.0
        self.optimizer.zero_grad()
        with sparse_embeddings(self._network) as settle:
            for micro in micro_batches(batch, tokens):
                values = self.reader.of(micro)
                here = micro.to(values.device)
                token = self._loss(values, here)
                assert here.token_weights is not None  # checked by `update`
                loss = (token.loss * here.token_weights).sum()
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
                for key, stat in token.stats.items():
                    metrics.add(key, stat, here.loss_mask)
                settle()
        return total, metrics


def _freeze_head(module: Any) -> None:
    """Freeze the head, unless it is tied to the embedding: a critic computes no logits."""
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    if isinstance(head, nn.Linear) and head.weight is not module.get_input_embeddings().weight:
        head.requires_grad_(False)
