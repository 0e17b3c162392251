"""The learner: owns weights and optimizer, and turns a batch with advantages and weights into one update."""

from oncurve.learner.actor_critic import ActorCritic as ActorCritic, SharedActorCritic as SharedActorCritic
from oncurve.learner.budget import of_the_whole as of_the_whole
from oncurve.learner.kinds import (
    CRITIC_KINDS as CRITIC_KINDS,
    LEARNER_KINDS as LEARNER_KINDS,
    Critic as Critic,
    CriticConfig as CriticConfig,
    LearnerConfig as LearnerConfig,
    NoCritic as NoCritic,
    SharedCriticConfig as SharedCriticConfig,
    check_critic as check_critic,
    check_learner as check_learner,
    check_learner_settings as check_learner_settings,
    gives_values as gives_values,
    warmup_of as warmup_of,
)
from oncurve.learner.optimizer.masters import cast_parameter as cast_parameter, widened as widened
from oncurve.learner.optimizer.sparse import rows_looked_up as rows_looked_up
from oncurve.learner.optimizer.update import (
    MasterAdamW as MasterAdamW,
    Pace as Pace,
    Schedule as Schedule,
    scheduled_rate as scheduled_rate,
)
from oncurve.learner.policy import (
    Accumulated as Accumulated,
    LocalLearner as LocalLearner,
    state_of as state_of,
    take_over as take_over,
)
from oncurve.learner.protocol import Learner as Learner, UpdateResult as UpdateResult
from oncurve.learner.reference import (
    AdapterReference as AdapterReference,
    Reference as Reference,
    ReferenceSettings as ReferenceSettings,
    Teacher as Teacher,
    as_read as as_read,
    is_apart as is_apart,
)
from oncurve.learner.settings import LearnerSettings as LearnerSettings
from oncurve.learner.stored_once import FROZEN as FROZEN, KnownByHash as KnownByHash
