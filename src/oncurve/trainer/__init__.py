"""The loop: draw prompts, sample, score, learn, write down. Algorithm 1 of DeepSeekMath, knowing no algorithm."""

from oncurve.trainer.credit import Advantage, Credit, EntropyControl, KLControl
from oncurve.trainer.groups.lagged import LaggedGroups
from oncurve.trainer.groups.source import DemonstratedGroups, Groups
from oncurve.trainer.groups.surplus import DynamicSampling
from oncurve.trainer.old_policy import OldPolicy
from oncurve.trainer.outer import HeldOut, OuterLoop, ReferenceSchedule
from oncurve.trainer.saving.checkpoint import FORMAT, Checkpoints, FoundCheckpoint
from oncurve.trainer.saving.recorder import Recorder, Refusals, RolloutsSettings
from oncurve.trainer.state import StepResult as StepResult, TrainerState
from oncurve.trainer.trainer import Trainer, TrainerConfig
from oncurve.trainer.watching.observe import peak_memory_bytes
from oncurve.trainer.watching.signals import StopSignals
