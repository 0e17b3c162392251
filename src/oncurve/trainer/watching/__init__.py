"""Views of a run for the trainer: metrics of a step, and signals."""
