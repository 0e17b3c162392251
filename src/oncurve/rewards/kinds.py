"""The kinds of rewards, by their names in a configuration."""

from __future__ import annotations

from oncurve.rewards.choice import Choice
from oncurve.rewards.cosine import Cosine
from oncurve.rewards.format import Format
from oncurve.rewards.length_cap import LengthCap
from oncurve.rewards.math import Math
from oncurve.rewards.model import ModelReward, ProcessModelReward
from oncurve.rewards.model_judge import ModelJudge
from oncurve.rewards.overlong import Overlong
from oncurve.rewards.python import Python
from oncurve.rewards.repetition import Repetition
from oncurve.rewards.settings import RewardSettings
from oncurve.rewards.verify import Exact, Numeric, Regex, Task, TaskSteps

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
    "length_cap": LengthCap,
    "repetition": Repetition,
    "cosine": Cosine,
    "model": ModelReward,
    "process_model": ProcessModelReward,
    "model_judge": ModelJudge,
}
