"""Views of a run for the trainer: metrics of a step, signals, evaluations, causes of a divergence."""
