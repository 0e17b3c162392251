"""The components of `[learner]` and `[critic]`: where and how the policy is trained, and its value function.

`V_t = V(q, o_<t)` is read off the hidden state that predicts token t: the last prompt token's for t = 1.

values.py        reading values off hidden states
actor_critic.py  the critic with a network of its own, and policy and critic as one learner
"""

from typing import Any, ClassVar, Protocol

from pydantic import Field

from oncurve.base.errors import ConfigError
from oncurve.components import Component, check_of, lacking
from oncurve.learner.actor_critic import ActorCritic, OwnCritic, SharedActorCritic
from oncurve.learner.policy import LocalLearner
from oncurve.learner.protocol import Learner
from oncurve.learner.settings import LearnerSettings
from oncurve.losses import Objective, Regularizer, ValueLoss
from oncurve.models import CausalModel


class Critic(Protocol):
    """The component of `[critic]`: it adds a critic to a policy's learner, or none."""

    def build(self, actor: LocalLearner) -> LocalLearner | ActorCritic | SharedActorCritic:
        """Return the learner of both."""


class CriticConfig(Component):
    """A critic with a backbone of its own (`kind = "own"`): the initial policy, and a value head."""

    learning_rate: float = Field(default=1e-5, ge=0)
    """Learning rate of its AdamW (of the value head's where the backbone is shared), the same at every update; its
    other settings are those of `[learner]`."""

    warmup_steps: int = Field(default=0, ge=0, le=10**9)
    """Updates that train the critic alone, before the policy is trained."""

    clip: float = Field(default=0.2, ge=0)
    """How far a value may move from the old one in one step; 0: no clipping."""

    def build(self, actor: LocalLearner) -> ActorCritic | SharedActorCritic:
        """Return `actor` with a critic. Raises ModelError where its model cannot be copied."""
        return ActorCritic(actor, OwnCritic(actor, self.learning_rate, ValueLoss(self.clip or None)), self.warmup_steps)


class SharedCriticConfig(CriticConfig):
    """A value head on the policy's own backbone (`kind = "shared"`): no second model."""

    coef: float = Field(default=0.1, ge=0)
    """Weight of the value loss in the policy's loss, by which the backbone learns values too."""

    def build(self, actor: LocalLearner) -> SharedActorCritic:
        """Return `actor` with a value head."""
        return SharedActorCritic(actor, self.learning_rate, self.warmup_steps, ValueLoss(self.clip or None, self.coef))


class NoCritic(Component):
    """No critic (`kind = "none"`): advantages are relative to the group."""

    gives_values: ClassVar[bool] = False

    def build(self, actor: LocalLearner) -> LocalLearner:
        """Return `actor` alone."""
        return actor


CRITIC_KINDS: dict[str, type[Component]] = {"none": NoCritic, "own": CriticConfig, "shared": SharedCriticConfig}


def gives_values(critic: Critic) -> bool:
    """Return whether it gives values and learns from returns. Left out by a component: True."""
    return bool(getattr(critic, "gives_values", True))


def warmup_of(critic: Critic) -> int:
    """Return the number of updates at the beginning of a run in which the critic alone is trained. Left out by a
    component: 0.
    """
    return int(getattr(critic, "warmup_steps", 0))


check_critic = check_of("critic", ("build",), ("gives_values",))


class LearnerConfig(LearnerSettings):
    """A learner in the training process (`kind = "local"`)."""

    @property
    def built_in(self) -> bool:
        """True, except for a class derived from this one."""
        return type(self) is LearnerConfig

    def build(
        self,
        model: CausalModel,
        objective: Objective,
        regularizer: Regularizer,
        critic: Critic | None = None,
        make: type[LocalLearner] = LocalLearner,
        **parts: Any,
    ) -> Learner:
        """Return a learner of the class `make` of the model, with the `critic`. Raises what those do.

        `parts` are the keyword arguments of `LocalLearner`: temperature, total_updates, reference, teacher,
        dtype, tokenizer.
        """
        return (critic or NoCritic()).build(make(self, model, objective, regularizer, **parts))


LEARNER_KINDS: dict[str, type[LearnerSettings]] = {"local": LearnerConfig}


def check_learner_settings(component: object) -> str | None:
    """Return what is wrong with a component as `[learner]`, or None."""
    if isinstance(component, LearnerSettings) and type(component).build is not LearnerSettings.build:
        return None
    name = type(component).__name__
    return f"{name} must derive from oncurve.learner.LearnerConfig, or from LearnerSettings with a build of its own"


def check_learner(learner: Learner) -> Learner:
    """Return `learner`, if it has all that the trainer needs. Raises ConfigError: it lacks something."""
    names = [name for name in vars(Learner) if not name.startswith("_")]
    problem = lacking(learner, names, "learner")
    if problem is not None:
        raise ConfigError(f"learner.kind: {problem}")
    return learner
