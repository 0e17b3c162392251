"""A decode step on this processor: the operations of torch and the processor seconds of one, next to its limit.

    python -m bench.single.decode [--model 6.5M] [--dtype float32] [--rows 32] [--threads 1] [--rounds 5]

Four prompts of 64 to 120 tokens, and 128 tokens in each of their completions. Two decoders take their steps in turn:
the *plain* one calls the modules of transformers with their own weights, the other is the sampler's. An operation is
one that torch's profiler sees, with no other but views in it. The limit (`bench/compare/counting.py`) takes the speed
of products and of memory, which is measured before every round in the same process. All seconds are this thread's, and
medians, so that other programs count as little as possible.
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
from bench.timing import ratio_interval

__all__ = ["main", "measure"]

LENGTHS = (64, 80, 100, 120)
TOKENS = 128
_VIEWS = """
    alias as_strided chunk detach empty empty_like empty_strided expand flatten linear matmul narrow permute
    promote_types reshape resize_ resolve_conj resolve_neg result_type select slice split split_with_sizes squeeze t
    transpose unbind unsqueeze unsafe_view _unsafe_view unflatten view
"""


def model_of(size: Size, dtype: torch.dtype) -> Any:
    """Return a random model."""
    from transformers import Qwen2ForCausalLM

    from oncurve.models import wrap

    torch.manual_seed(0)
    config = size.config()
    return wrap(Qwen2ForCausalLM(config).to(dtype))


class _Steps:
    """A decoder after its prefill, and the seconds of its steps."""

    def __init__(self, model: Any, size: Size, rows: int, plain: bool) -> None:
        from oncurve.models.layers import prepacked_weights

        draw = torch.Generator().manual_seed(1)
        prompts = [torch.randint(size.vocabulary, (length,), generator=draw) for length in LENGTHS]
        self._uniforms = torch.rand(TOKENS, rows, dtype=torch.float64, generator=draw)
        known, most = model._straight, prepacked_weights.MOST_PREPACKED_BYTES
        if plain:
            model._straight, prepacked_weights.MOST_PREPACKED_BYTES = False, 0
        copies = rows // len(LENGTHS)
        self._decoder = model.decoder(rows, TOKENS)
        self._hidden = self._decoder.join(prompts, copies).repeat_interleave(copies, 0)
        model._straight, prepacked_weights.MOST_PREPACKED_BYTES = known, most
        self.seconds: list[float] = []

    @torch.no_grad()
    def step(self) -> None:
        """Draw a token in each row, and run the body on it."""
        from oncurve.rollout.sampler import sample

        started = time.thread_time()
        ids, _ = sample(self._decoder.logits(self._hidden), self._uniforms[len(self.seconds)])
        self._hidden = self._decoder.step(ids)
        self.seconds.append(time.thread_time() - started)


def operations(steps: _Steps) -> dict[str, int]:
    """Return how often each operation runs in a step, the most frequent first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        steps.step()
    counts = Counter(
        event.name for event in seen.events() if _works(event) and not any(map(_works, event.cpu_children))
    )
    return dict(counts.most_common())


def _works(event: Any) -> bool:
    room, _, name = event.name.rpartition("::")
    return bool(room) and name not in _VIEWS.split() and (name != "to" or any(map(_works, event.cpu_children)))


def measure(model: str, dtype: torch.dtype, rows: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds of both steps and of the limit, its share, and the operations of a step."""
    size = SIZES[model]
    whole = model_of(size, dtype)
    work = Work(LENGTHS, ((TOKENS,) * (rows // len(LENGTHS)),) * len(LENGTHS), (True,) * len(LENGTHS), False)
    taken: dict[str, list[float]] = {"plain": [], "now": []}
    limits = []
    counts: dict[str, dict[str, int]] = {}
    for _ in range(rounds):
        flops, read = gemm_flops(size, dtype, time.thread_time), memory(time.thread_time)["read"]
        limits.append(decode_seconds(size, work, flops, read, dtype.itemsize) / (TOKENS - 1))
        both = {name: _Steps(whole, size, rows, name == "plain") for name in taken}
        for number in range(TOKENS - 2):
            for name in both if number % 2 else reversed(both):
                both[name].step()
        counts = {name: operations(steps) for name, steps in both.items()}
        for name, steps in both.items():
            taken[name] += steps.seconds[1 : TOKENS - 2]
    step = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return {
        "ms": {name: 1e3 * seconds for name, seconds in step.items()},
        "limit_ms": 1e3 * statistics.median(limits),
        "share": {name: statistics.median(limits) / seconds for name, seconds in step.items()},
        "plain_over_now": ratio_interval(taken["plain"], taken["now"]),
        "operations": {name: sum(each.values()) for name, each in counts.items()},
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
