"""The CUDA forms on a GPU: their correctness, then their speed. `python -m bench.gpu --out gpu.json`

Random weights at the shapes of Qwen2.5 0.5B, 1.5B and, on request, 7B: only shapes matter for speed. Nothing is
downloaded; the package must be installed (`pip install -e .`). Correctness first, on four layers of the smallest shape:
every CUDA form against the plain one. Where that fails the timings are still taken, the result is marked void, and the
exit status is 1. TRL's step is measured too, where TRL is installed. Without a CUDA device nothing is measured, and the
exit status is 2.

`--rehearse` runs all of it on the CPU at a toy shape, to see that it works; its timings mean nothing.

None of this has been run on a GPU yet.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.compare.counting import Work, ideal_seconds, train_flops
from bench.gpu import checks as gpu_checks, trl as gpu_trl
from bench.gpu.checks import GpuModel, build
from bench.models import Size
from oncurve.learner.optimizer.update import MasterAdamW
from oncurve.models import token_stats
from oncurve.models.causal import DecodeRequest
from oncurve.randomness import row_keys
from oncurve.rollout.sampler import Sampler
from oncurve.types import TrainBatch

SHAPES = {
    "0.5B": Size(896, 24, 14, 2, 4864, vocabulary=151936),
    "1.5B": Size(1536, 28, 12, 2, 8960, vocabulary=151936),
    "7B": Size(3584, 28, 28, 4, 18944, vocabulary=152064),
}
TOY = Size(64, 2, 4, 2, 96, vocabulary=512)


@dataclass(frozen=True)
class Plan:
    """One step: M prompts of P tokens, G completions each of C tokens; tokens of one micro-batch; steps timed."""

    prompts: int
    group_size: int
    prompt_tokens: int
    completion: int
    micro_tokens: int
    steps: int

    @property
    def work(self) -> Work:
        """The step's work for `counting`."""
        return Work(
            (self.prompt_tokens,) * self.prompts,
            ((self.completion,) * self.group_size,) * self.prompts,
            (True,) * self.prompts,
            False,
        )


PLANS = {
    "0.5B": Plan(32, 8, 256, 512, 32768, 3),
    "1.5B": Plan(32, 8, 256, 512, 16384, 3),
    "7B": Plan(8, 8, 256, 512, 8192, 2),
}
REHEARSAL = Plan(4, 2, 9, 12, 64, 1)


def main() -> int:
    """Run. Returns 0: measured and correct, 1: measured and not correct, 2: no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="0.5B,1.5B", help="of 0.5B, 1.5B, 7B, separated by commas")
    parser.add_argument("--out", type=Path, help="where the JSON goes; it is printed too")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, at a toy shape")
    chosen = parser.parse_args()
    if not torch.cuda.is_available() and not chosen.rehearse:
        print(
            "bench.gpu: torch sees no CUDA device, so nothing was measured (--rehearse runs it on the CPU)",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cpu" if chosen.rehearse else "cuda")
    names = ["toy"] if chosen.rehearse else chosen.models.split(",")
    if unknown := set(names) - {*SHAPES, "toy"}:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    result: dict[str, Any] = {"rehearsal": chosen.rehearse, "machine": machine(device), "models": {}}
    result["checks"] = gpu_checks.run(device)
    result["void"] = not all(check["passed"] for check in result["checks"].values())
    for name in names:
        size, plan = (TOY, REHEARSAL) if name == "toy" else (SHAPES[name], PLANS[name])
        result["models"][name] = measured(size, plan, device, result["machine"])
        print(f"{name}: {json.dumps(result['models'][name])}", flush=True)
    text = json.dumps(result, indent=1)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n", encoding="utf-8")
    return 1 if result["void"] else 0


def machine(device: torch.device) -> dict[str, Any]:
    """Return the card, the software, and its measured limits: bf16 products on random numbers, and copying."""
    side = 8192 if device.type == "cuda" else 256
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    many = torch.empty(2**32 if device.type == "cuda" else 2**20, device=device, dtype=torch.uint8)
    other = torch.empty_like(many)
    product, copy = best(device, lambda: left @ right), best(device, lambda: other.copy_(many))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "device": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "flops": 2 * side**3 / product,
        "bandwidth": 2 * many.numel() / copy,
    }


def best(device: torch.device, call: Callable[[], Any], times: int = 10) -> float:
    """Return seconds of one call, the fastest of several."""
    call()
    return min(timed(device, call)[0] for _ in range(times))


def timed(device: torch.device, call: Callable[[], Any]) -> tuple[float, Any]:
    """Return seconds of one call, waiting for the device before and after; and its result."""
    finish(device)
    started = time.perf_counter()
    result = call()
    finish(device)
    return time.perf_counter() - started, result


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(size: Size, plan: Plan, device: torch.device, limits: dict[str, Any]) -> dict[str, Any]:
    """Phases of a step in seconds (medians), and the figures derived from them."""
    model = build(size, device, torch.bfloat16)
    optimizer = MasterAdamW(model.module, torch.bfloat16)
    phases: dict[str, list[float]] = {"rollout": [], "train": [], "optimizer": [], "step": []}
    for step in range(-1, plan.steps):  # the first captures, compiles and makes the optimizer's state
        if step == 0 and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        rollout, batch = timed(device, partial(roll, model, plan, size, device, step))
        train, _ = timed(device, partial(learn, model, plan, batch))
        update, _ = timed(device, partial(update_weights, optimizer))
        if step >= 0:
            for name, seconds in zip(phases, (rollout, train, update, rollout + train + update), strict=True):
                phases[name].append(seconds)
    median = {name: statistics.median(seconds) for name, seconds in phases.items()}
    ideal = ideal_seconds(size, plan.work, limits["flops"], limits["bandwidth"], 2)
    found = {
        **{f"{name}_seconds": seconds for name, seconds in median.items()},
        "decode_step_ms": 1000 * median["rollout"] / plan.completion,
        "decode_roofline": (ideal.prefill + ideal.decode) / median["rollout"],
        "train_mfu": train_flops(size, plan.work) / (median["train"] * limits["flops"]),
        "step_roofline": ideal.step / median["step"],
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "plan": vars(plan),
    }
    del model, optimizer
    forget(device)
    module = build(size, device, torch.bfloat16).module
    if (trl := gpu_trl.measure(module, plan, device, finish)) is not None:
        found["trl"] = trl
    del module
    forget(device)
    return found


def forget(device: torch.device) -> None:
    """Free unused memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def update_weights(optimizer: MasterAdamW) -> None:
    """One step of the optimizer, the gradient's norm included."""
    optimizer.step(1e-6, optimizer.gradient_norm(), 1.0)


def roll(model: GpuModel, plan: Plan, size: Size, device: torch.device, step: int) -> TrainBatch:
    """Return a rollout, prefill included: C tokens for every row."""
    generator = torch.Generator().manual_seed(step + 1)
    shape = (plan.prompts, plan.prompt_tokens)
    prompts = torch.randint(size.vocabulary, shape, generator=generator).to(device).unbind(0)
    copies = torch.arange(plan.group_size)
    numbers = torch.arange(plan.prompts)
    keys = row_keys(0, step + 1, numbers.repeat_interleave(plan.group_size), copies.repeat(plan.prompts))
    limits = torch.full((plan.prompts, plan.group_size), plan.completion)
    by_group = keys.view(plan.prompts, -1)
    rows = model.graph_loop(DecodeRequest(prompts, by_group, limits, plan.completion, (), Sampler(1.0)))
    tokens, logprobs = (
        torch.tensor([getattr(row, name) for row in rows], device=device) for name in ("ids", "logprobs")
    )
    return batch_of(prompts, tokens, logprobs, plan)


def batch_of(prompts: tuple[Tensor, ...], tokens: Tensor, logprobs: Tensor, plan: Plan) -> TrainBatch:
    """Return the rows as a learner sees them, with made-up advantages."""
    rows, device = len(tokens), tokens.device
    return TrainBatch(
        completion_ids=tokens,
        lengths=torch.full((rows,), plan.completion, device=device),
        loss_mask=torch.ones_like(tokens, dtype=torch.bool),
        valid=torch.ones(rows, dtype=torch.bool, device=device),
        group_ids=torch.arange(plan.prompts, device=device).repeat_interleave(plan.group_size),
        prompts=prompts,
        rewards=torch.zeros(rows, dtype=torch.float64, device=device),
        rollout_logprobs=logprobs,
    )


def learn(model: GpuModel, plan: Plan, batch: TrainBatch) -> None:
    """The gradient of the whole batch, by micro-batches of whole groups."""
    signs = torch.cos(torch.arange(batch.size, device=batch.completion_ids.device))[:, None]
    for rows in micro_batches(plan):
        groups = range(rows.start // plan.group_size, rows.stop // plan.group_size)
        micro = batch.having(
            completion_ids=batch.completion_ids[rows],
            lengths=batch.lengths[rows],
            loss_mask=batch.loss_mask[rows],
            valid=batch.valid[rows],
            group_ids=batch.group_ids[rows] - groups.start,
            prompts=batch.prompts[groups.start : groups.stop],
            rewards=batch.rewards[rows],
            rollout_logprobs=None,
        )
        logprobs = token_stats(model, micro, observe=frozenset({"entropy"})).logprobs
        ((logprobs * signs[rows]).sum() / batch.completion_ids.numel()).backward()  # type: ignore[no-untyped-call]


def micro_batches(plan: Plan) -> Iterator[slice]:
    """Return rows of as many whole groups as fit into the budget."""
    group_tokens = plan.prompt_tokens + plan.group_size * plan.completion
    groups = max(1, plan.micro_tokens // group_tokens)
    for first in range(0, plan.prompts, groups):
        yield slice(first * plan.group_size, min(first + groups, plan.prompts) * plan.group_size)
