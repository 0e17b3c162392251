"""The loop: draw prompts, sample, score, learn, write down. Algorithm 1 of DeepSeekMath, knowing no algorithm."""

from oncurve.trainer.checkpoint import Checkpoints
from oncurve.trainer.control import KLControl
from oncurve.trainer.outer import ReferenceSchedule
from oncurve.trainer.protocols import Outer
from oncurve.trainer.recorder import Recorder
from oncurve.trainer.state import TrainerState
from oncurve.trainer.trainer import StepResult, Trainer, TrainerConfig

__all__ = [
    "Checkpoints",
    "KLControl",
    "Outer",
    "Recorder",
    "ReferenceSchedule",
    "StepResult",
    "Trainer",
    "TrainerConfig",
    "TrainerState",
]
