"""Experiment trackers: TensorBoard, wandb, trackio, or one of the user's.

The run's own log, `metrics.jsonl`, is what they show: a thread per tracker follows it, and each tracker says at its
beginning which steps it shows already. So training never waits for a tracker, and every step is shown once, also after
a kill and a resume.
"""

from oncurve.tracking.follower import Follower, Tracking
from oncurve.tracking.kinds import TRACKER_KINDS, trackers
from oncurve.tracking.protocol import CompletionRow as CompletionRow, TrackedRun as TrackedRun, TrackingSettings
