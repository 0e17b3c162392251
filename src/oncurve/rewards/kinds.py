"""The kinds of rewards, by their names in a configuration."""

from __future__ import annotations

from oncurve.rewards.functions.choice import Choice
from oncurve.rewards.functions.math import Cosine, Math
from oncurve.rewards.functions.python import Python
from oncurve.rewards.functions.shaping import Format, Overlong, Repetition
from oncurve.rewards.functions.verify import EnvironmentReward, Exact, Numeric, ReasoningGym, Regex, Task, TaskSteps
from oncurve.rewards.judge.model_judge import ModelJudge
from oncurve.rewards.model import ModelReward, ProcessModelReward
from oncurve.rewards.settings import RewardSettings

REWARD_KINDS: dict[str, type[RewardSettings]] = {
    "python": Python,
    "exact": Exact,
    "numeric": Numeric,
    "math": Math,
    "choice": Choice,
    "regex": Regex,
    "format": Format,
    "task": Task,
    "task_steps": TaskSteps,
    "overlong": Overlong,
    "repetition": Repetition,
    "cosine": Cosine,
    "environment": EnvironmentReward,
    "reasoning_gym": ReasoningGym,
    "model": ModelReward,
    "process_model": ProcessModelReward,
    "model_judge": ModelJudge,
}
