"""Policy and critic as one learner, so that the trainer knows of no critic.

ActorCritic         two models, two optimizers: each minibatch updates the critic, then the policy
SharedActorCritic   one backbone: the value loss is a part of the policy's, the head has an optimizer of its own
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from oncurve.errors import CheckpointError
from oncurve.learner.optim import MasterAdamW
from oncurve.learner.policy import LocalLearner
from oncurve.learner.protocol import UpdateResult
from oncurve.learner.values import ValueReader, blank_head
from oncurve.losses import ValueLoss
from oncurve.models import CausalModel
from oncurve.types import TrainBatch

if TYPE_CHECKING:
    from oncurve.learner.critic import OwnCritic

__all__ = ["ActorCritic", "SharedActorCritic"]

PREFIX = "critic."


class _Pair(ABC):
    """What both have in common: everything that is the policy's alone."""

    def __init__(self, actor: LocalLearner) -> None:
        self.actor = actor

    @property
    def version(self) -> int:
        """See `Learner.version`: the policy's."""
        return self.actor.version

    @property
    def changes(self) -> int:
        """See `Learner.changes`: the policy's, and the critic's optimizer steps."""
        return self.actor.changes + self._critic_steps

    @property
    @abstractmethod
    def _critic_steps(self) -> int:
        """Steps of the critic's optimizer, counted before a tensor changes."""

    def policy(self) -> CausalModel:
        """See `Learner.policy`."""
        return self.actor.policy()

    def old_logprobs(self, batch: TrainBatch) -> Tensor:
        """See `Learner.old_logprobs`."""
        return self.actor.old_logprobs(batch)

    def masters(self) -> Mapping[str, Tensor]:
        """The policy's parameters in full precision: what an export is made of."""
        return self.actor.masters()

    @property
    def reference_version(self) -> int:
        """See `Learner.reference_version`."""
        return self.actor.reference_version

    def move_reference(self, mixup: float) -> None:
        """See `Learner.move_reference`."""
        self.actor.move_reference(mixup)

    def reference_state(self) -> dict[str, Tensor] | None:
        """See `Learner.reference_state`."""
        return self.actor.reference_state()

    def load_reference(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Learner.load_reference`."""
        self.actor.load_reference(tensors)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """See `Learner.state`: the policy's, and the critic's under names that begin with "critic."."""
        tensors, meta = self.actor.state()
        others, counts = self._critic_state()
        return tensors | {PREFIX + name: tensor for name, tensor in others.items()}, meta | {"critic": counts}

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`. Raises CheckpointError for a checkpoint without a critic, or of another model."""
        if "critic" not in meta:
            raise CheckpointError("the checkpoint has no critic, and this run's settings ask for one")
        self.actor.load_state({name: tensors[name] for name in tensors if not name.startswith(PREFIX)}, meta)
        others = {name.removeprefix(PREFIX): tensors[name] for name in tensors if name.startswith(PREFIX)}
        self._load_critic(others, meta["critic"])

    @abstractmethod
    def _critic_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The critic's own."""

    @abstractmethod
    def _load_critic(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of it."""


class ActorCritic(_Pair):
    """A policy, and a critic with weights of its own. `warmup`: updates in which only the critic learns."""

    def __init__(self, actor: LocalLearner, critic: OwnCritic, warmup: int = 0) -> None:
        super().__init__(actor)
        self.critic = critic
        self._warmup = warmup
        actor.begin_after(warmup)

    def reference_streams(self, batch: TrainBatch) -> TrainBatch:
        """What the KL term needs, and the critic's `values` and `values_beyond`."""
        return self.actor.reference_streams(self.critic.fill(batch))

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """One update of each, the critic first; of the critic alone while it warms up."""
        judged = self.critic.update(minibatch)
        if judged.skipped:
            self.actor.pass_over()
        if judged.skipped or self.critic.optimizer.steps <= self._warmup:
            return judged
        moved = self.actor.update(minibatch)
        judged.metrics.merge(moved.metrics)
        return UpdateResult(judged.metrics, moved.skipped, moved.reason)

    @property
    def _critic_steps(self) -> int:
        return self.critic.optimizer.steps

    def _critic_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.critic.state()

    def _load_critic(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.critic.load_state(tensors, meta)


class SharedActorCritic(_Pair):
    """A policy with a value head on its backbone.

    rate     of the head's optimizer
    warmup   updates in which only the head learns; nothing of the policy moves
    loss     the value loss, whose `coef` is its weight beside the objective
    """

    def __init__(self, actor: LocalLearner, rate: float, warmup: int, loss: ValueLoss) -> None:
        super().__init__(actor)
        self.head = blank_head(actor.policy())
        settings = actor.config
        self.optimizer = MasterAdamW(self.head, None, settings.betas, settings.epsilon, settings.weight_decay)
        self._rate, self._warmup, self._max_norm = rate, warmup, settings.max_grad_norm
        self._reader = ValueReader(actor.policy(), self.head, actor.budget)
        actor.also_train(self._reader, loss)
        actor.begin_after(warmup)

    def reference_streams(self, batch: TrainBatch) -> TrainBatch:
        """What the KL term needs, and the head's `values` and `values_beyond`."""
        return self.actor.reference_streams(self._reader.fill(batch))

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """One update of both from one backward pass; of the head alone while it warms up."""
        accumulated = self.actor.accumulate(minibatch)
        warming = self.optimizer.steps < self._warmup
        result = self.actor.forget(accumulated) if warming else self.actor.apply(accumulated)
        if result.skipped:
            self.optimizer.zero_grad()
            if warming:
                self.actor.pass_over()
            return result
        norm = self.optimizer.gradient_norm()
        self.optimizer.step(self._rate, norm, self._max_norm)
        result.metrics.add("critic_grad_norm", norm)
        return result

    @property
    def _critic_steps(self) -> int:
        return self.optimizer.steps

    def _critic_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.optimizer.state(), {"steps": self.optimizer.steps}

    def _load_critic(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.optimizer.load_state(tensors, int(meta["steps"]))
