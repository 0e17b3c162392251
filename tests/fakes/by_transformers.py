"""Log-probs of a completion by transformers alone, from a saved model."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def logprobs_of(folder: Path, prompt: list[int], ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Return those of the whole vocabulary `(T, V)` at the tokens of the completion."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = network(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return (logits.double() / temperature).log_softmax(-1)


def taken(logprobs: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """Return those `(T,)` of the completion's own tokens."""
    return logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0]
