"""Lower bounds for the time of a step: FLOPs and bytes counted, divided by the rates of the machine.

With N_b body and N_h head parameters, M prompts of P tokens, G completions of C tokens, B = M·G,
a = 4·L·heads·head_dim, numbers of w bytes, K/V of `kv` bytes a token,
R FLOP/s and BW bytes a second, each prompt computed once per group:

    prefill        M·[2·N_b·P + a·P²/2 + 2·N_h] / R
    decode         Σ_t max( [w·(N_b + N_h) + kv·(M·P + B·t)] / BW,  [2·(N_b + N_h)·B + a·B·(P + t)] / R )
    reference      a forward over prompts once and completions, head on completions only: a third of training
    train          [6·N_b·M·(P + G·C) + 6·N_h·M·G·C + 3.5·a·M·(P²/2 + G·(P·C + C²/2))] / R, for each pass
    optimizer      every byte of weights, masters, moments and gradients read, and all but the gradients written, / BW

With an adapter of n parameters the frozen matrices have no gradient of their own (4 in the place of 6), and every token
goes through the n parameters too: 2·n forward, 6·n in training.

These are limits, not measurements: no program reaches them.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncurve.forecast.machines import Machine
from oncurve.forecast.memory import Footprint
from oncurve.forecast.shapes import ModelShape, Work


@dataclass(frozen=True)
class _Tokens:
    """Sums over the groups of a step, for all formulas."""

    prompt: float
    completion: float
    attended: float
    """Σ P²/2 + G·(P·C + C²/2): pairs of tokens that attend."""


def _tokens(work: Work) -> _Tokens:
    completion, group = work.completion_tokens, work.group_size
    scale = work.prompts / len(work.prompt_tokens)
    attended = sum(p * p / 2 + group * (p * completion + completion**2 / 2) for p in work.prompt_tokens)
    return _Tokens(scale * sum(work.prompt_tokens), float(work.completions * completion), scale * attended)


def prefill_flops(shape: ModelShape, work: Work) -> float:
    """FLOPs of the prompts, each once, and of one distribution after each."""
    squares = work.prompts / len(work.prompt_tokens) * sum(p * p / 2 for p in work.prompt_tokens)
    body = shape.body + shape.adapter
    return 2 * body * _tokens(work).prompt + shape.attention_flops * squares + 2 * shape.head * work.prompts


def _products(shape: ModelShape, tokens: _Tokens, frozen: int, adapter: int) -> float:
    """FLOPs of the products: `frozen` or `adapter` of them per parameter and token, the head on completions only."""
    every = tokens.prompt + tokens.completion
    return frozen * (shape.body * every + shape.head * tokens.completion) + adapter * shape.adapter * every


def scoring_flops(shape: ModelShape, work: Work) -> float:
    """FLOPs of one forward pass over all tokens, the head on completion tokens only."""
    tokens = _tokens(work)
    return _products(shape, tokens, 2, 2) + shape.attention_flops * tokens.attended


def training_flops(shape: ModelShape, work: Work) -> float:
    """FLOPs of one pass of training over all tokens: forward and backward, nothing computed twice."""
    tokens = _tokens(work)
    return _products(shape, tokens, 4 if shape.adapter else 6, 6) + 3.5 * shape.attention_flops * tokens.attended


def decode_step_floor(shape: ModelShape, work: Work, machine: Machine, step: float, width: int = 2) -> float:
    """Seconds of the decode step that appends token `step` to every completion, by bytes or by FLOPs."""
    products, rows, prompt = shape.body + shape.head + shape.adapter, work.completions, work.mean_prompt
    traffic = width * products + shape.cache_bytes(width) * (work.prompts * prompt + rows * step)
    flops = 2 * products * rows + shape.attention_flops * rows * (prompt + step)
    return max(traffic / machine.bandwidth, flops / machine.flops)


def floors(
    shape: ModelShape, work: Work, machine: Machine, footprint: Footprint, reference: bool = False
) -> dict[str, float]:
    """The least seconds of each phase of a step; `decode_step` is one step of `decode`."""
    width = footprint.weight
    decode = sum(decode_step_floor(shape, work, machine, step, width) for step in range(work.completion_tokens))
    state = footprint.weight + footprint.master + footprint.moments
    found = {
        "prefill": prefill_flops(shape, work) / machine.flops,
        "decode": decode,
        "reference": scoring_flops(shape, work) / machine.flops if reference else 0.0,
        "old": scoring_flops(shape, work) / machine.flops if work.old_pass else 0.0,
        "train": work.ppo_epochs * training_flops(shape, work) / machine.flops,
        "optimizer": work.updates * shape.trained * (2 * state + footprint.gradient) / machine.bandwidth,
    }
    return {**found, "step": sum(found.values()), "decode_step": decode / work.completion_tokens}
