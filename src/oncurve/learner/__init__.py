"""The learner: owns weights and optimizer, and turns a batch with advantages and weights into one update."""

from oncurve.learner.actor_critic import ActorCritic, SharedActorCritic
from oncurve.learner.budget import of_the_whole
from oncurve.learner.kinds import (
    CRITIC_KINDS,
    LEARNER_KINDS,
    Critic,
    CriticConfig,
    LearnerConfig as LearnerConfig,
    NoCritic,
    SharedCriticConfig,
    check_critic,
    check_learner,
    check_learner_settings,
    gives_values,
    warmup_of,
)
from oncurve.learner.optimizer.masters import cast_parameter, widened
from oncurve.learner.optimizer.sparse import rows_looked_up
from oncurve.learner.optimizer.update import MasterAdamW, Pace, Schedule, scheduled_rate
from oncurve.learner.policy import Accumulated, LocalLearner, state_of, take_over
from oncurve.learner.protocol import Learner as Learner, UpdateResult as UpdateResult
from oncurve.learner.reference import AdapterReference, Reference, ReferenceSettings, Teacher, as_read, is_apart
from oncurve.learner.settings import LearnerSettings
from oncurve.learner.stored_once import FROZEN, KnownByHash
