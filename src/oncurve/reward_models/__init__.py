"""Reward models that are trained: examples, labels of the policy's own samples, the learner, replay, iterations."""

from oncurve.reward_models.examples import (
    REWARD_EXAMPLE_KINDS as REWARD_EXAMPLE_KINDS,
    Example as Example,
    LabelledSteps as LabelledSteps,
    PreferencePair as PreferencePair,
    Preferences as Preferences,
    RewardExamples as RewardExamples,
    StepLabels as StepLabels,
    example_from_json as example_from_json,
    example_to_json as example_to_json,
)
from oncurve.reward_models.iterative import (
    Iterations as Iterations,
    IterativeSettings as IterativeSettings,
    Replay as Replay,
)
from oncurve.reward_models.labelling import (
    Labeller as Labeller,
    MonteCarloLabels as MonteCarloLabels,
    scored_pairs as scored_pairs,
    scored_steps as scored_steps,
)
from oncurve.reward_models.learner import (
    REWARD_MODEL_KINDS as REWARD_MODEL_KINDS,
    NoRewardModel as NoRewardModel,
    OutcomeModel as OutcomeModel,
    ProcessModel as ProcessModel,
    RewardLearner as RewardLearner,
    RewardModelSettings as RewardModelSettings,
)
from oncurve.reward_models.training import RewardTraining as RewardTraining, updates_of as updates_of
