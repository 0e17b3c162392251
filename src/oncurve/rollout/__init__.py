"""Rollout: prompts and a policy in, groups of completions out.

sampling.py   the settings             sampler.py    one token a row from logits
engine.py     prompts to groups        decoding.py   the token loop
rows.py       the rows in that loop    stopping.py   token ids to text, and where a stop string ends it
"""

from oncurve.rollout.engine import InProcessEngine, Limits, OnGroup, Policy, RolloutEngine, check_token_ids, is_exact
from oncurve.rollout.sampling import Sampling

__all__ = ["InProcessEngine", "Limits", "OnGroup", "Policy", "RolloutEngine", "Sampling", "check_token_ids", "is_exact"]
