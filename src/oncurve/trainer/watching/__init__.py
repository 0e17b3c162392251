"""What the trainer sees of a run: metrics of a step, signals, evaluations, causes of a divergence."""
