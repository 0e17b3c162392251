"""Tiny random transformers models of the five shapes that are promised, and ragged groups of token ids for them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from fakes.tables import table
from oncurve.models import TransformersModel
from oncurve.models.layers.rms_norm import replace_norms

VOCABULARY = 61
WINDOW = 5

SHAPE = table("tiny_models", "shape")
SMALL = table("tiny_models", "small")
"""A shape with half of the width, for models that are made often."""


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=WINDOW)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**table("tiny_models", "gpt2"))),
}


def architecture(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ARCHITECTURES[name]().to(dtype).eval()


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def fast_model(
    name: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0, device: str = "cpu"
) -> TransformersModel:
    """Return an architecture on the fast path, with norms that compute in its dtype."""
    module = architecture(name, dtype, seed)
    replace_norms(module)
    return TransformersModel(module.to(device))


def logits_of(model: TransformersModel, rows: "TokenRows") -> Tensor:
    return model.logits(model.completion_hidden(rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths))


def gradients(logits: Tensor, parameters: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of a sum of the logits in which each has another weight."""
    weights = torch.cos(torch.arange(logits.numel(), dtype=torch.float64)).view_as(logits).to(logits.dtype)
    return torch.autograd.grad((logits * weights).sum(), list(parameters))


def relative(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """Return the norm of the difference of two lists of tensors, over the norm of the second."""
    pairs = [(a.double(), b.double()) for a, b in zip(ours, theirs, strict=True)]
    difference = sum((a - b).square().sum() for a, b in pairs)
    return float((difference / sum(b.square().sum() for _, b in pairs)).sqrt())


def prompts_of(*lengths: int, vocabulary: int = VOCABULARY, seed: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (length,), generator=generator) for length in lengths]


@dataclass(frozen=True)
class TokenRows:
    """What `completion_hidden` takes; beyond `lengths` stand ids that no embedding has."""

    prompts: tuple[Tensor, ...]
    group_ids: Tensor
    completion_ids: Tensor
    lengths: Tensor


def token_rows(
    prompt_lengths: tuple[int, ...], groups: tuple[int, ...], lengths: tuple[int, ...], seed: int = 0
) -> TokenRows:
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> Tensor:
        return torch.randint(0, VOCABULARY, (count,), generator=generator)

    completions = torch.full((len(lengths), max(lengths)), -7)
    for row, length in enumerate(lengths):
        completions[row, :length] = ids(length)
    return TokenRows(
        tuple(ids(length) for length in prompt_lengths), torch.tensor(groups), completions, torch.tensor(lengths)
    )


UNIFORM = token_rows((7, 7, 7), (0, 0, 1, 1, 2, 2), (6, 6, 6, 6, 6, 6))
RAGGED = token_rows((3, 9, 1), (0, 0, 0, 1, 2, 2), (1, 6, 0, 4, 9, 2))
SHUFFLED = token_rows((3, 9, 1), (2, 0, 1, 0, 2, 0), (4, 6, 1, 4, 9, 2))
ONE_TOKEN_EACH = token_rows((3, 9), (0, 0, 1), (1, 1, 1))
EQUAL_PROMPTS = token_rows((5, 5), (0, 0, 1, 1), (2, 7, 4, 5))
ROWS = {
    "uniform": UNIFORM,
    "ragged": RAGGED,
    "rows in any order": SHUFFLED,
    "one token each": ONE_TOKEN_EACH,
    "prompts of one length": EQUAL_PROMPTS,
}
