"""Rollout: prompts and a policy in, groups of completions out.

sampling.py   how completions are drawn    sampler.py    one token per row from logits
engine.py     prompts to groups            stopping.py   token ids to text, and where a stop string ends it
kinds.py      `[engine]`: its settings
"""

from oncurve.rollout.engine import (
    EngineBase as EngineBase,
    InProcessEngine,
    OnGroup as OnGroup,
    RolloutEngine as RolloutEngine,
    check_lengths,
    check_token_ids,
    count_samples,
    sample,
)
from oncurve.rollout.kinds import ENGINE_KINDS, EngineConfig, LocalEngine as LocalEngine
from oncurve.rollout.sampling import Sampling as Sampling
from oncurve.rollout.stopping import Detokenizer, Tokenizer
