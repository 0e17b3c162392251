"""The critic: a value function over tokens, beside the policy or on its back.

`V_t = V(q, o_<t)` is read off the hidden state that predicts token t: the last prompt token's for t = 1.

values.py         reading values off hidden states
actor_critic.py   policy and critic as one learner
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import Field
from torch import Tensor, nn

from oncurve.batching import micro_batches
from oncurve.errors import ModelError
from oncurve.learner.actor_critic import ActorCritic, SharedActorCritic
from oncurve.learner.budget import Budget
from oncurve.learner.optim import MasterAdamW
from oncurve.learner.policy import LocalLearner
from oncurve.learner.protocol import UpdateResult
from oncurve.learner.sparse import sparse_embeddings
from oncurve.learner.values import ValueReader, blank_head
from oncurve.losses import ValueLoss
from oncurve.metrics import Metrics
from oncurve.spec import Component
from oncurve.types import TrainBatch

__all__ = [
    "CRITIC_KINDS",
    "Critic",
    "CriticConfig",
    "NoCritic",
    "OwnCritic",
    "SharedCriticConfig",
    "gives_values",
    "warmup_of",
]


class Critic(Protocol):
    """What `[critic]` is: it puts a critic beside a policy's learner, or none."""

    def build(self, actor: LocalLearner) -> LocalLearner | ActorCritic | SharedActorCritic:
        """The learner of both."""


class CriticConfig(Component):
    """Settings of a critic with a backbone of its own (`kind = "own"`): the policy as it was given, and a value head.

    learning_rate   of its AdamW, whose other settings are those of `[learner]`
    warmup_steps    updates in which it alone is trained, before the policy begins to move
    clip            how far a value may leave the old one in one step; 0: as far as it likes
    """

    learning_rate: float = Field(default=1e-5, ge=0)
    warmup_steps: int = Field(default=0, ge=0, le=10**9)
    clip: float = Field(default=0.2, ge=0)

    def build(self, actor: LocalLearner) -> ActorCritic | SharedActorCritic:
        """`actor` with a critic beside it. Raises ModelError where its model cannot be copied."""
        return ActorCritic(actor, OwnCritic(self, actor), self.warmup_steps)


class SharedCriticConfig(CriticConfig):
    """Settings of a value head on the policy's own backbone (`kind = "shared"`): no second model.

    learning_rate   of the head's AdamW, whose other settings are those of `[learner]`
    warmup_steps    updates in which the head alone is trained, before the policy begins to move
    clip            how far a value may leave the old one in one step; 0: as far as it likes
    coef            weight of the value loss in the policy's own, by which the backbone learns values too
    """

    coef: float = Field(default=0.1, ge=0)

    def build(self, actor: LocalLearner) -> SharedActorCritic:
        """`actor` with a value head."""
        return SharedActorCritic(actor, self.learning_rate, self.warmup_steps, ValueLoss(self.clip or None, self.coef))


class NoCritic(Component):
    """No critic (`kind = "none"`): a completion is graded by its siblings."""

    def build(self, actor: LocalLearner) -> LocalLearner:
        """`actor` alone."""
        return actor


CRITIC_KINDS: dict[str, type[Component]] = {"none": NoCritic, "own": CriticConfig, "shared": SharedCriticConfig}


def gives_values(critic: Critic) -> bool:
    """Whether there is a critic, which gives values and learns from returns."""
    return not isinstance(critic, NoCritic)


def warmup_of(critic: Critic) -> int:
    """Updates at the beginning of a run in which the critic alone is trained."""
    return critic.warmup_steps if isinstance(critic, CriticConfig) else 0


class _ValueNetwork(nn.Module):
    """Backbone and head as one module, for the optimizer."""

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head


class OwnCritic:
    """A value function with weights of its own. Learns with the policy's settings but for the rate."""

    def __init__(self, config: CriticConfig, actor: LocalLearner) -> None:
        """Copy the actor's model. Raises ModelError where it cannot be copied."""
        policy = actor.policy()
        try:
            model = copy.deepcopy(policy)
        except Exception as error:
            raise ModelError(f"{type(policy.module).__name__} cannot be copied for the critic ({error})") from error
        _freeze_head(model.module)
        self._network = _ValueNetwork(model.module, blank_head(model))
        settings = actor.config
        self.optimizer = MasterAdamW(
            self._network,
            None,
            settings.betas,
            settings.epsilon,
            settings.weight_decay,
            masters=settings.masters,
            moments=settings.moments,
        )
        self._rate, self._max_norm = config.learning_rate, settings.max_grad_norm
        self._loss = ValueLoss(config.clip or None)
        self.budget = Budget(settings.tokens_per_micro_batch)
        self._reader = ValueReader(model, self._network.head, self.budget)

    def fill(self, batch: TrainBatch) -> TrainBatch:
        """See `ValueReader.fill`."""
        return self._reader.fill(batch)

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """One step towards the batch's `returns`, on its `token_weights`.

        Nothing changes where loss or gradient is not finite. Raises ValueError for a batch without these streams.
        """
        if minibatch.token_weights is None:
            raise ValueError("an update needs token_weights: batch.with_weights(…) first")
        loss, metrics = self.budget.fit(lambda tokens: self._accumulate(minibatch, tokens), minibatch)
        norm = self.optimizer.gradient_norm()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.optimizer.zero_grad()
            skipped = Metrics()
            skipped.add("updates_skipped", 1.0)
            return UpdateResult(skipped, skipped=True, reason=f"critic: loss {loss:.4g}, gradient norm {norm:.4g}")
        self.optimizer.step(self._rate, norm, self._max_norm)
        metrics.add("critic_grad_norm", norm)
        return UpdateResult(metrics)

    def _accumulate(self, batch: TrainBatch, tokens: int) -> tuple[float, Metrics]:
        metrics, total = Metrics(), 0.0
        self.optimizer.zero_grad()
        with sparse_embeddings(self._network) as settle:
            for micro in micro_batches(batch, tokens):
                values = self._reader.of(micro)
                here = micro.to(values.device)
                token = self._loss(values, here)
                assert here.token_weights is not None  # `update` has looked
                loss = (token.loss * here.token_weights).sum()
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
                for key, stat in token.stats.items():
                    metrics.add(key, stat, here.loss_mask)
                settle()
        return total, metrics

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and counts, for `load_state`."""
        return self.optimizer.state(), {"steps": self.optimizer.steps, "tokens_per_micro_batch": self.budget.tokens}

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`, bit for bit. Raises CheckpointError for another model's."""
        self.optimizer.load_state(tensors, int(meta["steps"]))
        self.budget.tokens = min(self.budget.tokens, int(meta["tokens_per_micro_batch"]))


def _freeze_head(module: Any) -> None:
    """A critic makes no logits: a head that is not the embedding too is not trained."""
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    if isinstance(head, nn.Linear) and head.weight is not module.get_input_embeddings().weight:
        head.requires_grad_(False)
