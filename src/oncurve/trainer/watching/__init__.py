"""Views of a run for the trainer: metrics of a step, signals, evaluations, causes of a divergence."""

from oncurve.trainer.watching.held_out import HeldOut as HeldOut
from oncurve.trainer.watching.observe import (
    UntrainedUpdates as UntrainedUpdates,
    observe_batch as observe_batch,
    observe_memory as observe_memory,
    peak_memory_bytes as peak_memory_bytes,
    split_advantages as split_advantages,
    summarized as summarized,
    timer as timer,
)
from oncurve.trainer.watching.signals import StopSignals as StopSignals
from oncurve.trainer.watching.tokens import recording_tokens as recording_tokens
