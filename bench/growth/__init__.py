"""Growth curves: how time and memory grow with groups, prompts, completions, layers and vocabulary."""
