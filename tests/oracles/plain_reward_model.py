"""A reward model's loss, slow and obvious: one text at a time, through transformers alone, nothing from oncurve.

A text is prompt + completion as the tokenizer reads them, and the end-of-text token. A step is judged at the last token
of the text cut off behind the step's last visible character (for tokenizers that read a beginning as a beginning).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def plain_ids(tokenizer: Any, text: str) -> Tensor:
    return torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])


def plain_reward(module: Any, tokenizer: Any, text: str) -> Tensor:
    """The one logit of a text."""
    logits = module(input_ids=plain_ids(tokenizer, text)).logits
    assert logits.shape == (1, 1)
    return logits[0, 0]


def plain_chances(module: Any, tokenizer: Any, prompt: str, completion: str, ends: Sequence[int]) -> list[Tensor]:
    """Of each step how likely it is right: the softmax of two logits at its token."""
    logits = module(input_ids=plain_ids(tokenizer, prompt + completion)).logits[0]
    tokens = [len(tokenizer(prompt + completion[:end].rstrip())["input_ids"]) - 1 for end in ends]
    return [torch.softmax(logits[token], dim=0)[1] for token in tokens]


def plain_pair_loss(module: Any, tokenizer: Any, pairs: Sequence[Any], center: float = 0.0) -> Tensor:
    """1/N Σ [-ln σ(r_chosen - r_rejected - margin) + center (r_chosen + r_rejected)²]"""
    losses = []
    for pair in pairs:
        chosen = plain_reward(module, tokenizer, pair.prompt + pair.chosen)
        rejected = plain_reward(module, tokenizer, pair.prompt + pair.rejected)
        chance = 1 / (1 + torch.exp(-(chosen - rejected - pair.margin)))
        losses.append(-torch.log(chance) + center * (chosen + rejected) ** 2)
    return sum(losses) / len(losses)


def plain_step_loss(module: Any, tokenizer: Any, examples: Sequence[Any]) -> Tensor:
    """1/S Σ -[y ln p + (1 - y) ln (1 - p)] over all steps that have a label y."""
    losses = []
    for example in examples:
        chances = plain_chances(module, tokenizer, example.prompt, example.completion, example.ends)
        for p, y in zip(chances, example.labels, strict=True):
            if y is not None:
                losses.append(-(y * torch.log(p) + (1 - y) * torch.log(1 - p)))
    return sum(losses) / len(losses)
