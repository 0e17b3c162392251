"""A decode step on this processor: torch operations and processor seconds, next to the least that it needs.

    python -m bench.single.decode [--model 6.5M] [--dtype float32] [--rows 32] [--threads 1] [--rounds 5]

Four prompts of 64 to 120 tokens, `rows` / 4 completions each of 128 tokens, which none ends. An operation is one that torch's
profiler sees and that lies in no other. The limit (`bench/compare/counting.py`) takes the speed of products measured
between the rounds, in the same process. Seconds are the process's, so other programs count less.
"""

from __future__ import annotations

import argparse
import json
import statistics
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


def loop_of(size: Size, dtype: torch.dtype, rows: int) -> Any:
    """Return `(the token loop, its request)` of a random model."""
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
    copies = rows // len(LENGTHS)
    keys = torch.arange(rows).view(len(LENGTHS), copies)
    request = DecodeRequest(prompts, keys, torch.full_like(keys, TOKENS), TOKENS, (), Sampler(1.0))
    return model.token_loop(), request


def operations(loop: Any, request: Any, steps: int) -> Counter[str]:
    """Return how often each operation runs in a step, those alone that are in no other."""
    kinds = (torch.profiler.ProfilerActivity.CPU,)
    with torch.profiler.profile(activities=kinds) as seen:
        loop(request)
    leaves = [
        event
        for event in seen.events()
        if event.name.startswith(("aten::", "mkldnn::", "mkl::")) and not event.cpu_children
    ]
    counts = Counter(event.name for event in leaves)
    return Counter({name: count / steps for name, count in counts.items()})


def measure(model: str, dtype: torch.dtype, rows: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds of a step, its limit, and operations."""
    size = SIZES[model]
    loop, request = loop_of(size, dtype, rows)
    copies = rows // len(LENGTHS)
    short = type(request)(**{**vars(request), "limits": torch.ones_like(request.keys)})
    loop(request)
    work = Work(LENGTHS, ((TOKENS,) * copies,) * len(LENGTHS), (True,) * len(LENGTHS), False)
    took, limits = [], []
    for _ in range(rounds):
        flops, read = gemm_flops(size, dtype), memory()["read"]
        seconds = []
        for one in (short, request, request, short):
            started = time.process_time()
            loop(one)
            seconds.append(time.process_time() - started)
        took.append((seconds[1] + seconds[2] - seconds[0] - seconds[3]) / 2 / (TOKENS - 1))
        limits.append(decode_seconds(size, work, flops, read, dtype.itemsize) / (TOKENS - 1))
    share = [limit / step for limit, step in zip(limits, took, strict=True)]
    counts = operations(loop, request, TOKENS)
    return {
        "ms": 1e3 * statistics.median(took),
        "limit_ms": 1e3 * statistics.median(limits),
        "share": [statistics.median(share), min(share), max(share)],
        "operations": sum(counts.values()),
        "by_name": dict(counts.most_common(25)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="6.5M", choices=list(SIZES))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = measure(given.model, getattr(torch, given.dtype), given.rows, given.rounds)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
