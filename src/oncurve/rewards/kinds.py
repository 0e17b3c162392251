"""The kinds of rewards, by their names in a configuration."""

from oncurve.rewards.functions import verify
from oncurve.rewards.functions.math import Cosine, Math
from oncurve.rewards.functions.python import Python
from oncurve.rewards.functions.shaping import Format, Overlong, Repetition
from oncurve.rewards.judge.model_judge import ModelJudge
from oncurve.rewards.model import ModelReward, ProcessModelReward
from oncurve.rewards.settings import RewardSettings

REWARD_KINDS: dict[str, type[RewardSettings]] = {
    "python": Python,
    "exact": verify.Exact,
    "numeric": verify.Numeric,
    "math": Math,
    "choice": verify.Choice,
    "regex": verify.Regex,
    "format": Format,
    "task": verify.Task,
    "task_steps": verify.TaskSteps,
    "overlong": Overlong,
    "repetition": Repetition,
    "cosine": Cosine,
    "environment": verify.EnvironmentReward,
    "reasoning_gym": verify.ReasoningGym,
    "model": ModelReward,
    "process_model": ProcessModelReward,
    "model_judge": ModelJudge,
}
