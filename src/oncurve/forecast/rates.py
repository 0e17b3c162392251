"""Seconds of decoding and training from a machine's data: what share of its rates programs reach.

With N parameters, K/V of `kv` bytes per token and F FLOP/s and BW bytes per second of an engine,

    token_seconds   LAUNCH_SECONDS + 2·N / (DECODE_BANDWIDTH·BW)
    row_seconds     2·N / (DECODE_FLOPS·F) + kv·context / (DECODE_BANDWIDTH·BW)
    train_seconds   FLOPs of training / (TRAIN_FLOPS·F·GPUs)
"""

from __future__ import annotations

from oncurve.forecast.machines import Machine

TRAIN_FLOPS = 0.4
"""The share of a card's dense FLOP/s in training: Llama 3 reports 38 to 43 % (arXiv:2407.21783, section 3.3.2)."""

DECODE_FLOPS = 0.6
"""The same in decoding's matrix products. Assumed."""

DECODE_BANDWIDTH = 0.8
"""The share of the memory's bandwidth that decoding reaches. Assumed."""

LAUNCH_SECONDS = 0.002
"""Of a decode step whatever its size: scheduling, sampling, launches. Assumed."""

SIGMA = 0.745
"""σ of the logarithm of completions' lengths: fitted to two of verl's step times (`bench.scaling.fit`)."""

WEIGHTS_PER_SECOND = 3e9
"""Bytes of bf16 weights per second from trainers to engines, by NCCL in buckets: published are 5.5 to 6 s for 7B (2.7
GB/s), 17.9 s for 32B (3.6), 28.8 s for 72B (5.0)."""


def decode_seconds(
    parameters: float, cache_bytes: float, context: float, machine: Machine, width: int = 2
) -> tuple[float, float]:
    """`token_seconds` and `row_seconds` of an engine on one GPU, for rows with `context` tokens on average."""
    bandwidth = DECODE_BANDWIDTH * machine.bandwidth
    fixed = LAUNCH_SECONDS + width * parameters / bandwidth
    return fixed, 2 * parameters / (DECODE_FLOPS * machine.flops) + cache_bytes * context / bandwidth
