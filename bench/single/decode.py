"""A decode step on this processor: the operations of torch and the processor seconds of one, next to its limit.

    python -m bench.single.decode [--model 6.5M] [--dtype float32] [--rows 32] [--threads 1] [--rounds 5]

Four prompts of 64 to 120 tokens, and 128 tokens in each of their completions. An operation is one that torch's profiler
sees, that lies in no other, and that makes no mere view. The limit (`bench/compare/counting.py`) takes the speed of
products and of memory that is measured before every round, in the same process. Of the step and of the limit the least
of all rounds counts, in seconds of this process, so that other programs count as little as possible.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from typing import Any

import torch

from bench.compare.counting import Work, decode_seconds
from bench.compare.roofline import gemm_flops, memory
from bench.models import SIZES, Size

__all__ = ["main", "measure"]

LENGTHS = (64, 80, 100, 120)
TOKENS = 128
VIEWS = ("as_strided", "view", "_unsafe_view", "alias", "empty", "empty_strided", "resize_", "result_type", "to")


def loop_of(size: Size, dtype: torch.dtype, rows: int) -> tuple[Any, Any]:
    """Return the token loop of a random model, and its request."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from oncurve.models import wrap
    from oncurve.models.causal import DecodeRequest
    from oncurve.rollout.sampler import Sampler

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = wrap(Qwen2ForCausalLM(config).to(dtype))
    prompts = [torch.randint(size.vocabulary, (length,)) for length in LENGTHS]
    keys = torch.arange(rows).view(len(LENGTHS), -1)
    limits = torch.full_like(keys, TOKENS)
    return model.token_loop(), DecodeRequest(prompts, keys, limits, TOKENS, (), Sampler(1.0))


def operations(loop: Any, request: Any) -> dict[str, float]:
    """Return how often each operation runs in a step, the most frequent first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        loop(request)
    names = (event.name.rpartition("::")[2] for event in seen.events() if "::" in event.name and not event.cpu_children)
    counts = Counter(name for name in names if name not in VIEWS and not name.startswith("resolve_"))
    return {name: count / TOKENS for name, count in counts.most_common()}


def measure(model: str, dtype: torch.dtype, rows: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds of a step and of its limit, the limit's share, and the operations of a step."""
    size = SIZES[model]
    loop, request = loop_of(size, dtype, rows)
    short = dataclasses.replace(request, limits=torch.ones_like(request.keys))  # the prefill, and what surrounds it
    loop(request)
    work = Work(LENGTHS, ((TOKENS,) * (rows // len(LENGTHS)),) * len(LENGTHS), (True,) * len(LENGTHS), False)
    seconds: dict[int, list[float]] = {1: [], TOKENS: []}
    flops, read = [], []
    for _ in range(rounds):
        flops.append(gemm_flops(size, dtype))
        read.append(memory()["read"])
        for one in (short, request, request, short):
            started = time.process_time()
            loop(one)
            seconds[int(one.limits.max())].append(time.process_time() - started)
    step = (min(seconds[TOKENS]) - min(seconds[1])) / (TOKENS - 1)
    limit = decode_seconds(size, work, max(flops), max(read), dtype.itemsize) / (TOKENS - 1)
    counts = operations(loop, request)
    return {
        "ms": 1e3 * step,
        "limit_ms": 1e3 * limit,
        "share": limit / step,
        "operations": sum(counts.values()),
        "each": counts,
    }


def main() -> int:
    """Measure, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="6.5M", choices=list(SIZES))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(json.dumps(measure(given.model, getattr(torch, given.dtype), given.rows, given.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
