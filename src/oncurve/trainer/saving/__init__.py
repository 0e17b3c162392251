"""Files of the trainer: metrics, groups, checkpoints, and what the disk refuses."""

from oncurve.trainer.saving.checkpoint import (
    FORMAT as FORMAT,
    Checkpoints as Checkpoints,
    FoundCheckpoint as FoundCheckpoint,
)
from oncurve.trainer.saving.recorder import Recorder as Recorder
from oncurve.trainer.saving.refusals import Refusals as Refusals
from oncurve.trainer.saving.retention import RolloutsSettings as RolloutsSettings
