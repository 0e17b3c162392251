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

from oncurve.forecast.machines import Machine
from oncurve.forecast.memory import Variant
from oncurve.forecast.shapes import ModelShape, StepWork


def _tokens(work: StepWork) -> tuple[float, float, float]:
    """Return the tokens of prompts and of completions, and the pairs of tokens that attend, of all groups of a step:
    Σ P²/2 + G·(P·C + C²/2)."""
    completion, group, scale = work.completion_tokens, work.group_size, work.prompts / len(work.prompt_tokens)
    attended = sum(p * p / 2 + group * (p * completion + completion**2 / 2) for p in work.prompt_tokens)
    return scale * sum(work.prompt_tokens), float(work.completions * completion), scale * attended


def prefill_flops(shape: ModelShape, work: StepWork) -> float:
    """Return the FLOPs of the prompts, each once, and of one distribution after each."""
    squares = work.prompts / len(work.prompt_tokens) * sum(p * p / 2 for p in work.prompt_tokens)
    body = shape.body + shape.adapter
    return 2 * body * _tokens(work)[0] + shape.attention_flops * squares + 2 * shape.head * work.prompts


def _flops(shape: ModelShape, work: StepWork, frozen: int, adapter: int, attention: float) -> float:
    """Return FLOPs: `frozen` or `adapter` of them per parameter and token in products, the head on completions only,
    and `attention` of `attention_flops` per pair."""
    prompt, completion, attended = _tokens(work)
    every = prompt + completion
    products = frozen * (shape.body * every + shape.head * completion) + adapter * shape.adapter * every
    return products + attention * shape.attention_flops * attended


def scoring_flops(shape: ModelShape, work: StepWork) -> float:
    """Return the FLOPs of one forward pass over all tokens, the head on completion tokens only."""
    return _flops(shape, work, 2, 2, 1)


def training_flops(shape: ModelShape, work: StepWork) -> float:
    """Return the FLOPs of one pass of training over all tokens: forward and backward, nothing computed twice."""
    return _flops(shape, work, 4 if shape.adapter else 6, 6, 3.5)


def decode_step_floor(shape: ModelShape, work: StepWork, machine: Machine, step: float, width: int = 2) -> float:
    """Return the seconds of the decode step that appends token `step` to every completion, by bytes or by FLOPs."""
    products, rows, prompt = shape.body + shape.head + shape.adapter, work.completions, work.mean_prompt
    traffic = width * products + shape.cache_bytes(width) * (work.prompts * prompt + rows * step)
    flops = 2 * products * rows + shape.attention_flops * rows * (prompt + step)
    return max(traffic / machine.bandwidth, flops / machine.flops)


def floors(variant: Variant, machine: Machine) -> dict[str, float]:
    """Return the least seconds of each phase of a step; `decode_step` is one step of `decode`."""
    shape, work, per = variant.shape, variant.work, variant.footprint
    decode = sum(decode_step_floor(shape, work, machine, step, per.weight) for step in range(work.completion_tokens))
    scoring, state = scoring_flops(shape, work) / machine.flops, per.weight + per.master + per.moments
    found = {
        "prefill": prefill_flops(shape, work) * work.prefills / machine.flops,
        "decode": decode,
        "reference": scoring if variant.reference else 0.0,
        "old": scoring if work.old_pass else 0.0,
        "train": work.ppo_epochs * training_flops(shape, work) / machine.flops,
        "optimizer": work.updates * shape.trained * (2 * state + per.gradient) / machine.bandwidth,
    }
    return {**found, "step": sum(found.values()), "decode_step": decode / work.completion_tokens}
