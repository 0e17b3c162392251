"""How far decoding and a whole forward differ in bf16, ours and transformers': `python -m bench.single.mismatch 494M`.

In bf16 two ways to the same hidden states round at different places, and every layer adds to the difference.
The difference between transformers' own cached decoding and its own whole forward is due to the arithmetic alone.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from bench.models import SIZES, model_path
from oncurve.models import wrap
from oncurve.models.head.stats import token_stats
from oncurve.ops import token_logprobs
from oncurve.types import TrainBatch

__all__ = ["ours", "transformers_own"]

COMPLETIONS = 4


def ours(module: Any, prompt: Tensor, completions: Tensor) -> float:
    """Mean |log-prob of the sampler - of the learner| over `completions (n, T)` of `prompt (P,)`."""
    model = wrap(module)
    count, length = completions.shape
    decoder = model.decoder([prompt], [count], length)
    steps = [decoder.first_hidden[decoder.groups]]
    steps += [decoder.step(completions[:, place]) for place in range(length - 1)]
    sampled = [token_logprobs(model.logits(h), completions[:, place]) for place, h in enumerate(steps)]
    batch = TrainBatch(
        completion_ids=completions,
        lengths=torch.full((count,), length),
        loss_mask=torch.ones(count, length, dtype=torch.bool),
        valid=torch.ones(count, dtype=torch.bool),
        group_ids=torch.zeros(count, dtype=torch.int64),
        prompts=(prompt,),
        rewards=torch.zeros(count, dtype=torch.float64),
    )
    return float((torch.stack(sampled, 1) - token_stats(model, batch).logprobs).abs().mean())


def transformers_own(module: Any, prompt: Tensor, completions: Tensor) -> float:
    """The same of the module alone: its cached decoding against its forward over whole rows."""
    rows = torch.cat([prompt.expand(len(completions), -1), completions], 1)
    whole = token_logprobs(module(rows).logits[:, len(prompt) - 1 : -1], completions)
    output = module(rows[:, : len(prompt)], use_cache=True)
    cached = [token_logprobs(output.logits[:, -1], completions[:, 0])]
    for place in range(completions.shape[1] - 1):
        output = module(completions[:, place : place + 1], past_key_values=output.past_key_values, use_cache=True)
        cached.append(token_logprobs(output.logits[:, -1], completions[:, place + 1]))
    return float((torch.stack(cached, 1) - whole).abs().mean())


@torch.no_grad()
def main(name: str) -> None:
    """Print both for one of the benchmark's models."""
    from transformers import AutoModelForCausalLM

    generator = torch.Generator().manual_seed(0)
    vocabulary = SIZES[name].vocabulary
    prompt = torch.randint(0, vocabulary, (60,), generator=generator)
    completions = torch.randint(0, vocabulary, (COMPLETIONS, 16), generator=generator)
    path = model_path(name)
    own = transformers_own(AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16), prompt, completions)
    mine = ours(AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16), prompt, completions)
    print(f"{name}, bf16, mean difference of log-probs: oncurve {mine:.2e}, transformers' own {own:.2e}")


if __name__ == "__main__":
    main(sys.argv[1])
