"""Rollout: prompts and a policy in, groups of completions out."""
