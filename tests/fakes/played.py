"""Prompts and a policy's table for the tiny model's tokenizer, for the tests that play episodes and run programs."""

from pathlib import Path

import torch
from torch import Tensor

import oncurve.models.tiny
from oncurve.models.loading import load_tokenizer
from oncurve.types import Prompt

TOKENIZER = load_tokenizer(str(Path(oncurve.models.tiny.__file__).parent), local=True)


def table() -> Tensor:
    """Logits `(V, V)` of a bigram model that likes to end."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(len(TOKENIZER), len(TOKENIZER), generator=random, dtype=torch.float64)
    logits[:, TOKENIZER.eos_token_id] += 3.0
    return logits


def prompts(rows):
    ids = [tuple(TOKENIZER(f"{number}?")["input_ids"]) for number in range(len(rows))]
    return [Prompt(number, f"{number}?", ids[number], row) for number, row in enumerate(rows)]
