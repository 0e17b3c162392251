"""A rehearsed step: the run's own engine and learner on a small variant of its model, with its time and memory.

The rehearsal calls what a run calls, so a forecast follows the code. What is too large to be rehearsed whole is
rehearsed on fewer layers, groups or tokens and scaled up (`scaling`).

It measures resident memory and its peak, seconds, and rates of this machine.
"""

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oncurve.advantages import needs_of
from oncurve.batching import collate
from oncurve.config import RunConfig
from oncurve.forecast.shapes import Machine, ModelShape, StepWork, number_in
from oncurve.forecast.unloaded import build_variant
from oncurve.learner import LocalLearner
from oncurve.models import CausalModel, LocalWeights, LoraSettings, wrap
from oncurve.models.adapters import put_adapter
from oncurve.models.head import kept_bytes
from oncurve.rollout import InProcessEngine
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch


def tidy() -> None:
    """Free unreferenced memory, and return it to the system."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class MemoryMeter:
    """The memory of this process on the device: `now()`, and `peak()` since `reset()`.

    On the CPU this is the resident set, whose high-water mark Linux can reset. On other systems `exact` is False, and
    `peak()` is the peak of the whole process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.exact = device.type == "cuda" or self.reset()

    def reset(self) -> bool:
        """Reset the peak to the memory held now, and return whether that is possible."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            return True
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            return self._status("VmHWM") <= 1.02 * self._status("VmRSS")
        return False

    def now(self) -> int:
        """Return the bytes held now."""
        if self._device.type == "cuda":
            return int(torch.cuda.memory_allocated())
        import psutil

        return int(psutil.Process().memory_info().rss)

    def peak(self) -> int:
        """Return the most bytes held since `reset`."""
        return int(torch.cuda.max_memory_allocated()) if self._device.type == "cuda" else self._status("VmHWM")

    @staticmethod
    def _status(key: str) -> int:
        return 1024 * int(number_in(Path("/proc/self/status"), f"{key}:") or 0)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, until the device has finished it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure_machine(shape: ModelShape, dtype: torch.dtype, device: torch.device, memory: float) -> Machine:
    """Measure this machine's rates: of a layer's products (forward and both of the backward pass; 512 rows, 16,384 on a
    GPU, which fewer do not fill), and of reading memory. It takes about 0.3 s."""
    on_gpu, wide, hidden = device.type == "cuda", min(shape.intermediate, 8192), min(shape.hidden, 8192)
    x = torch.ones(16384 if on_gpu else 512, hidden, dtype=dtype, device=device)
    weight = torch.full((wide, hidden), 0.01, dtype=dtype, device=device)
    y = x @ weight.T

    def products() -> None:
        x @ weight.T
        y @ weight
        y.T @ x

    flops = 6.0 * len(x) * hidden * wide / _fastest(products, device, 0.15)
    much = torch.ones(1 << (28 if on_gpu else 24), device=device)
    bandwidth = 4.0 * much.numel() / _fastest(lambda: much.sum(), device, 0.1)
    return Machine(f"this machine ({device.type})", memory, flops, bandwidth, "measured now")


def _fastest(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the least time of one call, of at least 3 calls and as many as fit into `seconds`."""
    work()
    times = [seconds_of(work, device) for _ in range(3)]
    while sum(times) < seconds and len(times) < 1000:
        times.append(seconds_of(work, device))
    return min(times)


REFERENCE, OLD = frozenset({"reference"}), frozenset({"old"})
WARM = StepWork(1, 2, 3, (4,))
DECODE_SECONDS = 1.2
AGAIN_SECONDS = 3.0


@dataclass(frozen=True)
class Parts:
    """The parts of a run that decide how long a step takes. `model`: its configuration; `lora`: the adapter that stands
    in for the run's."""

    run: RunConfig
    model: Any
    lora: LoraSettings
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Rehearsed:
    """The measurements of a rehearsal.

    seconds      by phase: "prefill", "decode_step", "reference", "old", "train", "optimizer"
    trained      parameters of the relative that are trained
    saved        bytes that the forward pass of the layers kept for the backward
    held         bytes that the training pass held, gradients with it; None where it cannot be seen
    path_reason  which path the model takes, and why
    """

    seconds: dict[str, float]
    trained: int
    saved: int
    held: int | None
    path_reason: str


def rehearse(parts: Parts, layers: int, vocabulary: int, training: StepWork, rollout: StepWork) -> Rehearsed:
    """Build a model of so many `layers` and tokens, and time one pass of `training` and one `rollout` with it."""
    run = parts.run
    module = build_variant(parts.model, layers, vocabulary).to(parts.device)
    adapter = put_adapter(module, parts.lora, seed=0) if parts.lora.adapted else None
    model = wrap(module, run.model.attention, adapter)
    learner = LocalLearner(
        run.learner,
        model,
        run.objective,
        run.regularizer,
        temperature=run.rollout.temperature,
        total_updates=1000,
        dtype=parts.dtype,
    )
    stage = _Stage(parts, model, learner, vocabulary)
    stage.train(WARM)
    stage.generate(WARM, 3)
    prefill, step = stage.rollout(rollout)
    saved = stage.saved(training)
    seconds, held = stage.train(training)
    if sum(seconds.values()) < AGAIN_SECONDS:  # the first of a size may find something to set up
        again, more = stage.train(training)
        seconds = {phase: min(seconds[phase], again[phase]) for phase in seconds}
        held = max(held, more) if held is not None and more is not None else None
    return Rehearsed(
        {"prefill": prefill, "decode_step": step, **seconds},
        learner.optimizer.trained_count,
        saved,
        held,
        model.path_reason,
    )


class _Stage:
    """A model with engine and learner, ready for any amount of work."""

    def __init__(self, parts: Parts, model: CausalModel, learner: LocalLearner, vocabulary: int) -> None:
        self._parts, self._model, self._learner, self._vocabulary = parts, model, learner, vocabulary
        self._sampling = parts.run.rollout.model_copy(update={"stop": (), "eos_ids": ()})
        self._engine = InProcessEngine(self._sampling)
        self._engine.follow(LocalWeights(model, 0))
        self._meter = MemoryMeter(parts.device)

    def generate(self, work: StepWork, tokens: int) -> float:
        """Return the seconds of a rollout with completions of exactly so many tokens."""
        asked = self._sampling.model_copy(update={"group_size": work.group_size, "max_new_tokens": tokens})
        prompts = [self._prompt(index, work) for index in range(work.prompts)]
        return seconds_of(lambda: self._engine.generate(prompts, 0, asked), self._parts.device)

    def rollout(self, work: StepWork) -> tuple[float, float]:
        """Return the seconds of the prefill (with the first token), and of one decode step on average."""
        most = work.completion_tokens
        prefill = min(self.generate(work, 1) for _ in range(2))
        if most == 1:
            return prefill, 0.0
        steps = min(8, most - 1)
        step = max(self.generate(work, steps + 1) - prefill, 0.0) / steps
        affordable = min(most - 1, int(DECODE_SECONDS / max(step, 1e-6)))
        if affordable > steps:
            step = max(self.generate(work, affordable + 1) - prefill, 0.0) / affordable
        return prefill, step

    def train(self, work: StepWork) -> tuple[dict[str, float], int | None]:
        """Return the seconds of everything between rollout and next step, and the most that the training pass held."""
        device, learner = self._parts.device, self._learner
        batch = self._batch(work)
        seconds = {"reference": 0.0, "old": 0.0}
        scored: list[TrainBatch] = [batch]
        if learner.reference is not None:
            seconds["reference"] = seconds_of(lambda: scored.append(learner.score(batch, REFERENCE)), device)
        if work.old_pass:
            seconds["old"] = seconds_of(lambda: scored.append(learner.score(scored[-1], OLD)), device)
        run, told = self._parts.run, scored[-1]
        # in place of an advantage that needs a critic or a teacher, one with which each row has a gradient
        stands_in = bool(needs_of(run.advantage) & {"values", "teacher"})
        ready = told.with_advantages(told.existing().to(torch.float64) if stands_in else run.advantage(told))
        ready = ready.with_weights(run.token_weights(ready))
        tidy()
        before = self._meter.now() - kept_bytes(self._model.module.parameters())
        self._meter.reset()
        accumulated: list[Any] = []
        seconds["train"] = seconds_of(lambda: accumulated.append(learner.accumulate(ready)), device)
        held = self._meter.peak() - before if self._meter.exact else None
        seconds["optimizer"] = seconds_of(lambda: learner.apply(accumulated[0]), device)
        return seconds, held

    def saved(self, work: StepWork) -> int:
        """Return the bytes that the layers' forward pass keeps for the backward, without parameters, by storage."""
        batch = self._batch(work)
        known = {parameter.untyped_storage().data_ptr() for parameter in self._model.module.parameters()}
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()  # the tensor itself would be held in a cycle for ever, where it is an output

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self._model.completion_hidden(batch.prompts, batch.group_ids, batch.completion_ids, batch.lengths)
        return sum(kept.values())

    def _prompt(self, index: int, work: StepWork) -> Prompt:
        length = work.prompt_tokens[index % len(work.prompt_tokens)]
        return Prompt(index, "", tuple((7919 * place + 31 * index) % self._vocabulary for place in range(length)))

    def _batch(self, work: StepWork) -> TrainBatch:
        """Return a batch as a rollout would leave it, of arbitrary tokens, no two rewards of a group alike."""
        groups, numbers, logprobs = [], range(work.completion_tokens), (-1.0,) * work.completion_tokens
        for index in range(work.prompts):
            completions = []
            for sample in range(work.group_size):
                ids = tuple((101 * place + 13 * sample) % self._vocabulary for place in numbers)
                completions.append(Completion(ids, "", logprobs, "eos", sample, 0))
            scores = tuple(Score(float(sample)) for sample in range(work.group_size))
            groups.append(Group(self._prompt(index, work), tuple(completions), scores))
        return collate(groups)
