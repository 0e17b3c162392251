"""The loop: draw prompts, sample, score, learn, write down. Algorithm 1 of DeepSeekMath, knowing no algorithm."""

from oncurve.trainer.checkpoint import Checkpoints
from oncurve.trainer.control import KLControl
from oncurve.trainer.recorder import Recorder
from oncurve.trainer.state import TrainerState
from oncurve.trainer.trainer import StepResult, Trainer, TrainerConfig

__all__ = ["Checkpoints", "KLControl", "Recorder", "StepResult", "Trainer", "TrainerConfig", "TrainerState"]
