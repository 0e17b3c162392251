"""Policy and critic as one learner: the trainer sees an ordinary learner.

OwnCritic           a critic with weights of its own: a copy of the policy's network, a value head, their optimizer
ActorCritic         two models, two optimizers: each minibatch updates the critic, then the policy
SharedActorCritic   one backbone: the value loss is a part of the policy's, the head has an optimizer of its own
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from oncurve.base.errors import CheckpointError, ModelError
from oncurve.batching import micro_batches
from oncurve.learner.budget import Budget
from oncurve.learner.optimizer.sparse import sparse_embeddings
from oncurve.learner.optimizer.update import MasterAdamW
from oncurve.learner.policy import LocalLearner
from oncurve.learner.protocol import UpdateResult
from oncurve.learner.values import ValueReader, blank_head
from oncurve.losses import ValueLoss
from oncurve.metrics import Metrics
from oncurve.models import LocalWeights
from oncurve.types import TrainBatch


class OwnCritic:
    """A value function with weights of its own. Its optimizer has the policy's settings, and a constant rate."""

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
        head = blank_head(model)
        self._network = nn.ModuleDict({"backbone": model.module, "head": head})  # one module, for the optimizer
        settings = actor.config
        self.optimizer = MasterAdamW(self._network, None, **settings.adamw, has_base=policy.adapter is not None)
        self._rate, self._max_norm, self._loss = learning_rate, settings.max_grad_norm, loss
        self.budget = Budget(settings.tokens_per_micro_batch, policy.free_decoding)
        self.reader = ValueReader(model, head, self.budget)

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


class _Pair:
    """The common part of both: everything that is the policy's alone, and the critic's values and checkpoints."""

    def __init__(self, actor: LocalLearner, optimizer: MasterAdamW, reader: ValueReader, warmup: int) -> None:
        self.actor = actor
        self._critic_optimizer, self._reader, self._warmup = optimizer, reader, warmup
        actor.pace.total = max(0, actor.pace.total - warmup)  # the policy is not trained in the first updates

    @property
    def version(self) -> int:
        """Return how often the policy's weights have changed."""
        return self.actor.version

    @property
    def changes(self) -> int:
        """The policy's changes, and the steps of the critic's optimizer."""
        return self.actor.changes + self._critic_optimizer.steps

    def weights(self) -> LocalWeights:
        """Return the policy's weights as they are now."""
        return self.actor.weights()

    def score(self, batch: TrainBatch, want: frozenset[str]) -> TrainBatch:
        """Return the batch with what `want` names, without a gradient: "values" of the critic, the rest of the
        policy.
        """
        return self.actor.score(self._reader.fill(batch) if "values" in want else batch, want)

    def move_reference(self, alpha: float) -> None:
        """π_ref ← α π_θ + (1 - α) π_ref; nothing happens where there is no reference."""
        self.actor.move_reference(alpha)

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face form, without the critic."""
        self.actor.export(folder)

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write the policy, and the critic to `critic.safetensors`; the record of both."""
        critic = self._critic_optimizer.save(folder, "critic")
        return {**self.actor.save(folder), "critic": critic | {"tokens_per_micro_batch": self._reader.budget.tokens}}

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote. Raises CheckpointError for a checkpoint without a critic, or of another model."""
        if "critic" not in meta:
            raise CheckpointError("the checkpoint has no critic, and this run's settings need one")
        self.actor.load(folder, meta)
        self._critic_optimizer.load(folder, "critic", meta["critic"])
        self._reader.budget.lower_to(int(meta["critic"]["tokens_per_micro_batch"]))

    def close(self) -> None:
        """Release what the policy holds."""
        self.actor.close()


class ActorCritic(_Pair):
    """A policy, and a critic with weights of its own. `warmup`: updates in which only the critic learns."""

    def __init__(self, actor: LocalLearner, critic: OwnCritic, warmup: int = 0) -> None:
        super().__init__(actor, critic.optimizer, critic.reader, warmup)
        self.critic = critic

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """Return one update of each, the critic first; of the critic alone while it warms up."""
        before, result = self.critic.optimizer.steps, self.critic.update(minibatch)
        if result.skipped or self.critic.optimizer.steps <= self._warmup:
            if self.critic.optimizer.steps == before:
                self.actor.pace.attempts += 1  # its schedule goes on
            return result
        moved = self.actor.update(minibatch)
        result.metrics.merge(moved.metrics)
        return UpdateResult(result.metrics, moved.skipped, moved.reason)


class SharedActorCritic(_Pair):
    """A policy with a value head on its backbone.

    rate     of the head's optimizer
    warmup   updates in which only the head learns; nothing of the policy moves
    loss     the value loss, whose `coef` is its weight next to the objective
    """

    def __init__(self, actor: LocalLearner, rate: float, warmup: int, loss: ValueLoss) -> None:
        settings = actor.config
        self.head = blank_head(actor.model)
        self.optimizer = MasterAdamW(self.head, None, **(settings.adamw | {"moments": "float32"}))
        self._rate, self._max_norm = rate, settings.max_grad_norm
        reader = ValueReader(actor.model, self.head, actor.budget)
        actor.also_train(reader, loss)
        super().__init__(actor, self.optimizer, reader, warmup)

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """Return one update of both from one backward pass; of the head alone while it warms up."""
        accumulated = self.actor.accumulate(minibatch)
        warming = self.optimizer.steps < self._warmup
        result = self.actor.forget(accumulated) if warming else self.actor.apply(accumulated)
        stepped = False
        if result.skipped:
            self.optimizer.zero_grad()
        else:
            norm = self.optimizer.gradient_norm()
            stepped = self.optimizer.step(self._rate, norm, self._max_norm)
            result.metrics.add("critic/grad_norm", norm)
        if warming and not stepped:
            self.actor.pace.attempts += 1  # its schedule goes on
        return result
