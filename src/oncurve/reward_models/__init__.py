"""Reward models that are trained: examples, labels of the policy's own samples, the learner, replay, iterations."""

from oncurve.reward_models.examples import (
    REWARD_EXAMPLE_KINDS,
    Example,
    LabelledSteps,
    PreferencePair,
    Preferences,
    RewardExamples,
    StepLabels,
    example_from_json,
    example_to_json,
)
from oncurve.reward_models.iterative import Iterations, IterativeSettings, Replay
from oncurve.reward_models.labelling import Labeller, MonteCarloLabels, scored_pairs, scored_steps
from oncurve.reward_models.learner import (
    REWARD_MODEL_KINDS,
    NoRewardModel,
    OutcomeModel,
    ProcessModel,
    RewardLearner,
    RewardModelSettings,
)
from oncurve.reward_models.training import RewardTraining, updates_of
