"""The critic: a value function over tokens, beside the policy or on its back, and the two as one learner.

`V_t = V(q, o_<t)` is read off the hidden state that predicts token t: the last prompt token's for t = 1.

    OwnCritic      a backbone of its own (a copy of the policy as it was given, or another model), its own optimizer
    ActorCritic    policy and critic as one `Learner`, so that the trainer knows of no critic
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad

from oncurve.batching import micro_batches
from oncurve.errors import CheckpointError, ModelError
from oncurve.learner.budget import Budget
from oncurve.learner.optim import MasterAdamW
from oncurve.learner.policy import LocalLearner
from oncurve.learner.protocol import UpdateResult
from oncurve.learner.sparse import sparse_embeddings
from oncurve.losses import ValueLoss
from oncurve.metrics import Metrics
from oncurve.models import CausalModel
from oncurve.models.causal import module_device
from oncurve.spec import Component
from oncurve.types import TrainBatch

__all__ = ["CRITIC_KINDS", "ActorCritic", "Critic", "CriticConfig", "NoCritic", "OwnCritic"]


class Critic(Protocol):
    """What `[critic]` is: it puts a critic beside a policy's learner, or none."""

    def build(self, actor: LocalLearner) -> LocalLearner | ActorCritic:
        """The learner of both."""


class CriticConfig(Component):
    """Settings of a critic with a backbone of its own (`kind = "own"`): the policy as it was given, and a value head.

    learning_rate   of its AdamW, whose other settings are those of `[learner]`
    warmup_steps    updates in which it alone is trained, before the policy begins to move
    clip            how far a value may leave the old one in one step; 0: as far as it likes
    """

    learning_rate: float = Field(default=1e-5, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    clip: float = Field(default=0.2, ge=0)

    def build(self, actor: LocalLearner) -> ActorCritic:
        """`actor` with a critic beside it. Raises ModelError where its model cannot be copied."""
        return ActorCritic(actor, OwnCritic(self, actor), self.warmup_steps)


class NoCritic(Component):
    """No critic (`kind = "none"`): a completion is graded by its siblings."""

    def build(self, actor: LocalLearner) -> LocalLearner:
        """`actor` alone."""
        return actor


CRITIC_KINDS: dict[str, type[Component]] = {"none": NoCritic, "own": CriticConfig}


class _ValueNetwork(nn.Module):
    """Backbone and head as one module, for the optimizer. The head begins at 0: no value is claimed of anything."""

    def __init__(self, backbone: nn.Module, width: int, device: torch.device) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, 1, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class OwnCritic:
    """A value function with weights of its own. Learns with the policy's settings but for the rate."""

    def __init__(self, config: CriticConfig, actor: LocalLearner) -> None:
        """Copy the actor's model. Raises ModelError where it cannot be copied."""
        policy = actor.policy()
        try:
            self._model = copy.deepcopy(policy)
        except Exception as error:
            raise ModelError(f"{type(policy.module).__name__} cannot be copied for the critic ({error})") from error
        device = module_device(self._model.module)
        width = _hidden_size(self._model, device)
        _freeze_head(self._model.module)
        self._network = _ValueNetwork(self._model.module, width, device)
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

    def values(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        """`V_t (B, T)`, 0 where no token is, and the values behind the last tokens `(B,)`; no gradient.

        The value behind a completion is what the critic would say before one token more.
        """
        longer = TrainBatch(
            completion_ids=pad(batch.completion_ids, (0, 1)),
            lengths=batch.lengths + 1,
            loss_mask=pad(batch.loss_mask, (0, 1)),
            valid=batch.valid,
            group_ids=batch.group_ids,
            prompts=batch.prompts,
            rewards=batch.rewards,
        )
        with torch.no_grad():
            found = self.budget.fit(lambda tokens: self._values(longer, tokens), longer)
        rows = torch.arange(batch.size, device=found.device)
        beyond = found[rows, batch.lengths.to(found.device)]
        values = torch.where(batch.existing().to(found.device), found[:, :-1], 0.0)
        return values.to(batch.completion_ids.device), beyond.to(batch.completion_ids.device)

    def _values(self, batch: TrainBatch, tokens: int) -> Tensor:
        width = batch.completion_ids.shape[1]
        pieces = [self._of(micro) for micro in micro_batches(batch, tokens)]
        return torch.cat([pad(piece, (0, width - piece.shape[1])) for piece in pieces])

    def _of(self, micro: TrainBatch) -> Tensor:
        """The values `(b, T)` of a micro-batch."""
        hidden = self._model.completion_hidden(micro.prompts, micro.group_ids, micro.completion_ids, micro.lengths)
        column = self._network.head(hidden.to(self._network.head.weight.dtype)).squeeze(1)
        exists = micro.existing().to(hidden.device)
        return torch.zeros(exists.shape, dtype=column.dtype, device=column.device).masked_scatter(exists, column)

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
        with sparse_embeddings(self._network):
            for micro in micro_batches(batch, tokens):
                values = self._of(micro)
                here = micro.having(
                    **{
                        name: stream.to(values.device)
                        for name in ("values", "returns", "loss_mask", "token_weights")
                        if (stream := getattr(micro, name)) is not None
                    }
                )
                token = self._loss(values, here)
                assert here.token_weights is not None  # `update` has looked
                loss = (token.loss * here.token_weights).sum()
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
                for key, stat in token.stats.items():
                    metrics.add(key, stat, here.loss_mask)
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


def _hidden_size(model: CausalModel, device: torch.device) -> int:
    """How wide the hidden states are that the model hands out."""
    one = torch.ones(1, dtype=torch.int64, device=device)
    with torch.no_grad():
        return int(model.completion_hidden([one], one - 1, one[None], one).shape[1])


class ActorCritic:
    """A policy and its critic as one learner: both are updated on every minibatch, the critic first.

    warmup   updates in which only the critic learns
    """

    def __init__(self, actor: LocalLearner, critic: OwnCritic, warmup: int = 0) -> None:
        self.actor, self.critic = actor, critic
        self._warmup = warmup

    @property
    def version(self) -> int:
        """See `Learner.version`: the policy's."""
        return self.actor.version

    def policy(self) -> CausalModel:
        """See `Learner.policy`."""
        return self.actor.policy()

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """One update of each; of the critic alone while it warms up."""
        judged = self.critic.update(minibatch)
        if judged.skipped or self.critic.optimizer.steps <= self._warmup:
            return judged
        moved = self.actor.update(minibatch)
        judged.metrics.merge(moved.metrics)
        return UpdateResult(judged.metrics, moved.skipped, moved.reason)

    def old_logprobs(self, batch: TrainBatch) -> Tensor:
        """See `Learner.old_logprobs`."""
        return self.actor.old_logprobs(batch)

    def reference_streams(self, batch: TrainBatch) -> TrainBatch:
        """What the KL term needs, and the critic's `values` and `values_beyond`."""
        values, beyond = self.critic.values(batch)
        return self.actor.reference_streams(batch).having(values=values, values_beyond=beyond)

    def masters(self) -> Mapping[str, Tensor]:
        """The policy's parameters in full precision: what an export is made of."""
        return self.actor.masters()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """See `Learner.state`: the policy's, and the critic's under names that begin with "critic."."""
        tensors, meta = self.actor.state()
        others, counts = self.critic.state()
        return tensors | {f"critic.{name}": tensor for name, tensor in others.items()}, meta | {"critic": counts}

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`. Raises CheckpointError for a checkpoint without a critic, or of another model."""
        if "critic" not in meta:
            raise CheckpointError("the checkpoint has no critic, and this run's settings ask for one")
        mine = {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}
        others = {name.removeprefix("critic."): tensors[name] for name in tensors if name.startswith("critic.")}
        self.actor.load_state(mine, meta)
        self.critic.load_state(others, meta["critic"])

    def reference_state(self) -> dict[str, Tensor] | None:
        """See `Learner.reference_state`."""
        return self.actor.reference_state()

    def load_reference(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Learner.load_reference`."""
        self.actor.load_reference(tensors)
