"""What the trainer writes down: metrics, groups, checkpoints, and what the disk refuses."""
