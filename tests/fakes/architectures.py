"""Tiny random transformers models of the five shapes that are promised, and ragged groups of token ids for them."""

from collections.abc import Callable
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

VOCABULARY = 61
WINDOW = 5

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,  # large enough that attention is far from uniform
}


def _gpt2() -> nn.Module:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    return GPT2LMHeadModel(config)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=16, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=WINDOW)),
    "gpt2": _gpt2,
}


def architecture(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ARCHITECTURES[name]().to(dtype).eval()


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
