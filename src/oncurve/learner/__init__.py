"""The learner: owns weights and optimizer, and turns a batch with advantages and weights into one update."""

from oncurve.learner.actor_critic import ActorCritic, SharedActorCritic
from oncurve.learner.critic import CRITIC_KINDS, CriticConfig, NoCritic, SharedCriticConfig, gives_values, warmup_of
from oncurve.learner.optim import MasterAdamW, Schedule, scheduled_rate
from oncurve.learner.policy import Accumulated, LearnerConfig, LocalLearner
from oncurve.learner.protocol import Learner, UpdateResult
from oncurve.learner.reference import Reference, ReferenceSettings

__all__ = [
    "CRITIC_KINDS",
    "Accumulated",
    "ActorCritic",
    "CriticConfig",
    "Learner",
    "LearnerConfig",
    "LocalLearner",
    "MasterAdamW",
    "NoCritic",
    "Reference",
    "ReferenceSettings",
    "Schedule",
    "SharedActorCritic",
    "SharedCriticConfig",
    "UpdateResult",
    "gives_values",
    "scheduled_rate",
    "warmup_of",
]
