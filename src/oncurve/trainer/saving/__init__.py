"""Files of the trainer: metrics, groups, checkpoints, and what the disk refuses."""
