"""Part B of the day: how fast is it? Whole steps at the shapes of Qwen2.5, by phase, with their memory."""

from __future__ import annotations

import cProfile
import io
import json
import math
import pstats
import subprocess
import sys
from collections import Counter
from functools import partial
from typing import Any

import torch

from bench import models
from bench.compare.counting import Work, ideal_seconds, train_flops
from bench.gpu.day import Place, Section
from bench.gpu.limits import MACHINE, machine, timed
from bench.gpu.runs import assembled, case_of, make_model, step
from bench.models import SIZES
from oncurve import batching
from oncurve.base.errors import OncurveError

KERNELS = 40


def steps(place: Place, name: str, count: int, settings: dict[str, dict[str, Any]], **work: Any) -> None:
    """Note the figures of `count` steps of one case: the first captures and compiles."""
    case = case_of(place, name, **work)
    label = f"{name} {case.lengths} {case.completion} " + json.dumps(settings).replace('"', "")
    lengths = case.lengths_of_step(0)
    whole = Work((160,) * case.prompts, tuple(map(tuple, lengths)), (True,) * case.prompts, False)
    ideal = ideal_seconds(SIZES[case.model], whole, 7.5e14, 3.0e12, 2)
    place.note(
        f"{label}: at 750 TFLOP/s and 3 TB/s", {"prefill + decode": ideal.prefill + ideal.decode, "train": ideal.train}
    )
    place.note(f"{label}: training FLOPs", train_flops(SIZES[case.model], whole))
    try:
        with assembled(place, case, **settings) as run:
            for number in range(count):
                place.note(f"{label}: step {number}", step(run, place))
    except (OncurveError, torch.OutOfMemoryError) as error:
        place.note(f"{label}: error", f"{type(error).__name__}: {error}"[:600])


def fixed(place: Place) -> None:
    """Measure 64 groups of 8 completions of 512 tokens."""
    steps(place, "0.5B", 4, {})


def natural(place: Place) -> None:
    """Measure the same with completions of 1 to 1,024 tokens."""
    steps(place, "0.5B", 3, {}, completion=1024, lengths="natural")


def rows(place: Place) -> None:
    """Measure twice as many of them, at several numbers of rows."""
    for most in (1024, 512, 256):
        settings = {"rollout": {"max_concurrent": 8 if place.toy else most}}
        steps(place, "0.5B", 2, settings, completion=1024, lengths="natural", prompts=128)


def larger(place: Place) -> None:
    """Measure 1.5B."""
    steps(place, "1.5B", 3, {})


def adapters(place: Place) -> None:
    """Measure 1.5B and 7B with an adapter."""
    lora = {"lora": {"rank": 16}}
    steps(place, "1.5B", 2, lora)
    steps(place, "7B", 2, lora, prompts=16)


def long(place: Place) -> None:
    """Measure completions of 1 to 8,192 tokens."""
    steps(place, "0.5B", 2, {}, completion=8192, lengths="natural", prompts=32)


def profiled(place: Place) -> None:
    """Profile a short step: its kernels, by the time they take, and how many there are."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if place.device.type == "cuda" else [])
    with assembled(place, case_of(place, "0.5B", prompts=8)) as run:
        step(run, place)
        for phase, call in _phases(run):
            with profile(activities=kinds) as seen:
                call()
                if place.device.type == "cuda":
                    torch.cuda.synchronize()
            place.note(phase, _kernels(seen))
            place.note(f"{phase}, seconds", timed(place.device, call)[0])
            place.note(f"{phase}, Python", _python(call))


def _phases(run: Any) -> list[tuple[str, Any]]:
    """Return the rollout of a step and its update, as calls."""
    trainer = run.trainer
    held: list[Any] = []
    update = trainer.learner.update

    def kept(batch: Any) -> Any:
        held.append(batch)
        return update(batch)

    trainer.learner.update = kept
    trainer.step()
    prompts = [group.prompt for group in trainer.step().groups]
    return [
        ("rollout of 64 rows, 512 tokens", partial(run.engine.generate, prompts, 3)),
        ("update", lambda: update(held[-1])),
    ]


def _python(call: Any) -> list[str]:
    """Return the functions that take the most of the interpreter's time."""
    seen = cProfile.Profile()
    seen.runcall(call)
    said = io.StringIO()
    pstats.Stats(seen, stream=said).sort_stats("tottime").print_stats(KERNELS)
    return [line.strip()[:140] for line in said.getvalue().splitlines() if line.strip()]


def _kernels(seen: Any) -> dict[str, Any]:
    """Return what ran on the device: number, microseconds, and the longest by name with both."""
    found, count, span = Counter[str](), Counter[str](), []
    for event in seen.events():
        if str(event.device_type).endswith("CUDA"):
            found[event.name[:100]] += event.time_range.elapsed_us()
            count[event.name[:100]] += 1
            span += [event.time_range.start, event.time_range.end]
    longest = {name: [round(time), count[name]] for name, time in found.most_common(KERNELS)}
    host = sorted(seen.key_averages(), key=lambda each: -each.self_cpu_time_total)
    return {
        "host": {each.key[:60]: [round(each.self_cpu_time_total), each.count] for each in host[:KERNELS]},
        "kernels": sum(count.values()),
        "busy": round(sum(found.values())),
        "span": max(span) - min(span) if span else None,
        "longest": longest,
    }


def sweep(place: Place) -> None:
    """Measure micro-batches of several sizes."""
    sizes = (64,) if place.toy else (16384, 32768, 65536)
    for tokens in sizes:
        steps(place, "0.5B", 3, {"learner": {"tokens_per_micro_batch": tokens}}, prompts=32)


def filled(place: Place) -> None:
    """Measure updates whose micro-batches are filled with rows of the next group, and have whole groups, in turn."""
    for work in ({}, {"completion": 1024, "lengths": "natural"}):
        case = case_of(place, "0.5B", **work)
        with assembled(place, case) as run:
            step(run, place)
            (_, update) = _phases(run)[1]
            update()
            own = batching.FILLED
            for name, least in 3 * (("whole groups", math.inf), ("filled", own)):
                batching.FILLED = least  # type: ignore[assignment]
                place.note(f"update, {case.lengths} {case.completion}, {name}", timed(place.device, update)[0])
            batching.FILLED = own


def planned(place: Place) -> None:
    """Note what `oncurve plan` says of the fixed case, next to which the steps of that case stand."""
    case = case_of(place, "0.5B")
    make_model(place, case.model)
    words = [
        f"model.path={models.CACHE / case.model}",
        f"model.device={place.device.type}",
        f"data.prompts_per_step={case.prompts}",
        f"rollout.group_size={case.group_size}",
        f"rollout.max_new_tokens={case.completion}",
        *("kl.coef=0", "--prompt-tokens", str(case.prompt_tokens), "--json"),
    ]
    asked = [sys.executable, "-m", "oncurve", "plan", *words]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    try:
        place.note("plan", json.loads(said.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        place.note("plan said", (said.stdout + said.stderr)[-2000:])


STEPS = {f"0.5B fixed 512 {{}}: step {number}": {"time/step": 2.9} for number in (1, 2, 3)}
LARGER = {f"1.5B fixed 512 {{}}: step {number}": {"time/step": 6.8} for number in (1, 2)}
"""Estimates of whole steps with decoding in pages."""

SECTIONS = {
    "machine": Section(machine, 40, MACHINE),
    "fixed": Section(fixed, 150, STEPS),
    "natural": Section(natural, 60),
    "rows": Section(rows, 150),
    "profile": Section(profiled, 90),
    "larger": Section(larger, 90, LARGER),
    "adapters": Section(adapters, 200),
    "long": Section(long, 120),
    "sweep": Section(sweep, 100),
    "planned": Section(planned, 60),
    "filled": Section(filled, 140),
}
