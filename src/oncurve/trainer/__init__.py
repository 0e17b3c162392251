"""The loop: draw prompts, sample, score, learn, write down. Algorithm 1 of DeepSeekMath, knowing no algorithm."""

from oncurve.trainer.credit import (
    Advantage as Advantage,
    Credit as Credit,
    EntropyControl as EntropyControl,
    KLControl as KLControl,
)
from oncurve.trainer.groups.lagged import LaggedGroups as LaggedGroups
from oncurve.trainer.groups.source import DemonstratedGroups as DemonstratedGroups, Groups as Groups
from oncurve.trainer.groups.surplus import DynamicSampling as DynamicSampling
from oncurve.trainer.old_policy import OldPolicy as OldPolicy
from oncurve.trainer.outer import HeldOut as HeldOut, OuterLoop as OuterLoop, ReferenceSchedule as ReferenceSchedule
from oncurve.trainer.saving.checkpoint import (
    FORMAT as FORMAT,
    Checkpoints as Checkpoints,
    FoundCheckpoint as FoundCheckpoint,
)
from oncurve.trainer.saving.recorder import (
    Recorder as Recorder,
    Refusals as Refusals,
    RolloutsSettings as RolloutsSettings,
)
from oncurve.trainer.state import StepResult as StepResult, TrainerState as TrainerState
from oncurve.trainer.trainer import Trainer as Trainer, TrainerConfig as TrainerConfig
from oncurve.trainer.watching.observe import peak_memory_bytes as peak_memory_bytes
from oncurve.trainer.watching.signals import StopSignals as StopSignals
