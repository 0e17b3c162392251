"""The loop: draw prompts, sample, score, learn, write down. Algorithm 1 of DeepSeekMath, knowing no algorithm."""

from oncurve.trainer.checkpoint import (
    FORMAT as FORMAT,
    Checkpoints as Checkpoints,
    FoundCheckpoint as FoundCheckpoint,
)
from oncurve.trainer.collecting import Collected as Collected
from oncurve.trainer.control import EntropyControl as EntropyControl, KLControl as KLControl
from oncurve.trainer.held_out import HeldOut as HeldOut
from oncurve.trainer.iterative import Iterations as Iterations, IterativeSettings as IterativeSettings
from oncurve.trainer.labelling import (
    Labeller as Labeller,
    MonteCarloLabels as MonteCarloLabels,
    scored_pairs as scored_pairs,
    scored_steps as scored_steps,
)
from oncurve.trainer.observe import peak_memory_bytes as peak_memory_bytes
from oncurve.trainer.old_policy import OldPolicy as OldPolicy
from oncurve.trainer.outer import ReferenceSchedule as ReferenceSchedule
from oncurve.trainer.protocols import Advantage as Advantage, OuterLoop as OuterLoop
from oncurve.trainer.recorder import Recorder as Recorder
from oncurve.trainer.replay import Replay as Replay
from oncurve.trainer.result import StepResult as StepResult
from oncurve.trainer.retention import RolloutsSettings as RolloutsSettings
from oncurve.trainer.reward_training import RewardTraining as RewardTraining, updates_of as updates_of
from oncurve.trainer.rollouts import LaggedRollouts as LaggedRollouts, Rollouts as Rollouts
from oncurve.trainer.state import TrainerState as TrainerState
from oncurve.trainer.surplus import DynamicSampling as DynamicSampling
from oncurve.trainer.trainer import Trainer as Trainer, TrainerConfig as TrainerConfig
