"""The cells of the main table: oncurve and each other system at the same work, step by step in the order A B B A.

Both workers run at once where memory allows, otherwise one after the other, which the results record. Each pair of a
cell is saved when it is done.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from bench import machine
from bench.cases import CELLS, SYSTEMS, Case
from bench.compare import roofline
from bench.compare.counting import ideal_seconds, size_of, tokens_of, train_flops, work_of
from bench.results import Results, default_path
from bench.systems.process import BenchError, NoRoomError, Worker
from bench.timing import ratio_interval
from oncurve.models.layers.prepacked_weights import prepacked_bytes

__all__ = ["PAIRS", "STEPS", "Turns", "best_peer", "run", "side_by_side"]

TRL = ("trl-bf16", "trl-fp32", "trl-autocast", "trl-continuous")
PAIRS: dict[str, tuple[str, ...]] = {
    "6.5M fixed": (*TRL, "rlox", "oncurve-fp32"),
    "6.5M natural": (*TRL, "oncurve-fp32"),
    "38M fixed": TRL,
    "38M natural": TRL,
    "494M fixed": (*TRL, "oncurve-lean"),
    "494M natural": TRL,
}
"""The systems that oncurve is compared with in each cell. Its own other settings run alone, for memory and seconds."""

STEPS = {"6.5M": 5, "38M": 5, "494M": 3}
QUICK = {"6.5M fixed": 5, "6.5M natural": 5, "494M fixed": 2}
TRIAL_TOKENS = 16
QUICK_SECONDS = 455.0
"""A quick run begins no round of a cell that would end later than this."""

RLOX_PROMPT_TOKENS = 80  # rlox takes prompts of one length only; both systems get these

SLACK = 0.9  # the usable share of the available memory


@dataclass
class Turns:
    """The reports of a worker's timed steps, its peak memory, and the processor seconds of its steps and waits."""

    system: str
    reports: list[dict[str, Any]]
    peak_bytes: int = 0
    idle_cpu_seconds: float = 0.0
    about: dict[str, Any] | None = None
    cpu_seconds: list[float] = field(default_factory=list)


def run(results: Results, quick: bool, only: str | None = None, started: float | None = None) -> None:
    """Measure every pair that the present code has not measured, with the machine's limits before and after each.

    The first system is compared in every cell, then the next, so that a run that is stopped has seen all cells.

    Raises BenchError at the end where a system failed. A pair that does not fit into memory is recorded as skipped.
    """
    begun = time.monotonic() if started is None else started
    names = [name for name in (QUICK if quick else PAIRS) if only is None or name.startswith(only)]
    if not names:
        raise BenchError(f"no cell begins with {only!r}; the cells are: {', '.join(PAIRS)}")
    limits: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for name, other in _quick_pairs(names) if quick else in_rounds(names):
        if SYSTEMS[other].half and not machine.has_bf16():
            continue
        if not results.has("cells", name, other):
            steps = QUICK[name] if quick else STEPS[CELLS[name].model]
            until = begun + QUICK_SECONDS if quick else None
            try:
                _keep_pair(results, name, other, steps, until, limits)
            except BenchError as error:
                print(f"  skipped: {error}", flush=True)
                results.put({"skipped": str(error)}, "cells", name, other)
                failed += [] if isinstance(error, NoRoomError) else [f"{name}, {other}"]
    if failed:
        raise BenchError(f"{'; '.join(failed)}: failed, see above")


def in_rounds(names: Iterable[str]) -> list[tuple[str, str]]:
    """Cells and the systems compared in them: the first of every cell, the second of every cell, ..."""
    pairs = [(name, other) for name in names for other in PAIRS[name]]
    return sorted(pairs, key=lambda pair: PAIRS[pair[0]].index(pair[1]))


def best_peer(whole: Mapping[str, Any], trial: Callable[[], Mapping[str, float]]) -> tuple[str, str]:
    """Return the TRL setting to compare with, and the reason: the fastest of a whole run on this machine or of a trial.

    `whole` are the pairs of a cell in that run; `trial` gives seconds of a short step, and is called only without them.
    """
    medians = {key: whole[key]["systems"][key]["seconds"] for key in TRL if "systems" in whole.get(key, {})}
    if len(medians) > 1:
        where = "the whole run on this machine"
    else:
        medians, where = dict(trial()), f"a trial of steps of {TRIAL_TOKENS} tokens on this machine"
    return min(medians, key=lambda key: medians[key]), f"the fastest of {len(medians)} in {where}"


@cache
def _trial() -> dict[str, float]:
    """Return seconds of a short step of each TRL setting, after one to warm up: of the smallest model.

    Which setting is best depends on the processor's products, hardly on the model. Raises BenchError: none runs.
    """
    case, seconds = replace(CELLS["6.5M fixed"], completion=TRIAL_TOKENS), dict[str, float]()
    for setting in TRL:
        try:
            with Worker(case.under(setting)) as worker:
                worker.step()
                seconds[setting] = worker.step()["seconds"]
        except BenchError as error:
            print(f"  {setting}: {error}", flush=True)
    print("  trial: " + ", ".join(f"{SYSTEMS[key].label} {took:.2f} s" for key, took in seconds.items()), flush=True)
    if not seconds:
        raise BenchError("no setting of TRL runs here")
    return seconds


def _quick_pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each cell with TRL's best setting on this processor, which is printed with its reason."""
    whole = Results.read(default_path(quick=False)).get("cells", {})
    pairs = []
    for name in names:
        other, reason = best_peer(whole.get(name, {}), _trial)
        print(f"{name}: compared with {SYSTEMS[other].label}, because {reason}", flush=True)
        pairs.append((name, other))
    return pairs


def _keep_pair(
    results: Results, name: str, other: str, steps: int, until: float | None, limits: dict[str, dict[str, Any]]
) -> None:
    """Measure a pair and save it. `limits`: the machine's, as measured after the pair before, by model."""
    case = CELLS[name] if other != "rlox" else replace(CELLS[name], prompt_tokens=RLOX_PROMPT_TOKENS)
    alone = other.startswith("oncurve")
    print(f"{name}: {other if alone else f'oncurve and {other}'} ...", flush=True)
    before = limits.get(case.model) or roofline.measure(case.model, case.threads)
    limits.clear()
    if alone:
        turns, order = [_alone(case.under(other), steps, until)], "alone"
    else:
        turns, order = side_by_side(case, case.under(other), steps, until)
    after = limits[case.model] = roofline.measure(case.model, case.threads)
    found: dict[str, Any] = {"order": order, "threads": case.threads, "limits": {"before": before, "after": after}}
    mean = {key: (before[key] + after[key]) / 2 for key in before}
    found["systems"] = {turn.system: summary(case.under(turn.system), turn, mean) for turn in turns}
    if not alone:
        ours, theirs = ([report["seconds"] for report in turn.reports] for turn in turns)
        found["ratio"] = ratio_interval(theirs, ours, sum if case.lengths == "natural" else statistics.median)
        found["steps"] = len(ours)
        found["memory_ratio"] = turns[0].peak_bytes / turns[1].peak_bytes
    results.put(found, "cells", name, other)
    print("  " + _line(found), flush=True)


def _line(found: dict[str, Any]) -> str:
    parts = [
        f"{system} {own['seconds']:.2f} s, {own['peak_bytes'] / 1e9:.2f} GB" for system, own in found["systems"].items()
    ]
    if "ratio" in found:
        parts.append("{:.2f}x ({:.2f} to {:.2f})".format(*found["ratio"]))
    return "; ".join(parts)


def needed_bytes(case: Case) -> float:
    """Return a rough peak of a worker's memory: bytes per parameter, and 10 copies of all completions' float32 logits.

    oncurve never holds those logits. Its activations count as a twentieth of its bytes per parameter, and its weights
    packed for decoding are added.
    """
    size = size_of(case)
    parameters = size.body_parameters + size.head_parameters
    held = SYSTEMS[case.system].bytes_per_parameter * parameters
    if case.system.startswith("oncurve"):
        each = 4 if SYSTEMS[case.system].settings.get("dtype") == "float32" else 2
        return 1e9 + 1.05 * held + prepacked_bytes(each * parameters)
    return 0.8e9 + held + 10 * 4.0 * case.rows * case.completion * size.vocabulary


def _check_room(case: Case) -> None:
    needs, there = needed_bytes(case), machine.available_bytes()
    if needs > SLACK * there:
        raise NoRoomError(
            f"{case.system} needs about {needs / 1e9:.0f} GB here, and {there / 1e9:.0f} GB are available"
        )


def _alone(case: Case, steps: int, until: float | None) -> Turns:
    _check_room(case)
    with Worker(case) as worker:
        turns = Turns(case.system, [], about=worker.about)
        worker.step()
        for _ in range(steps):
            if turns.reports and until is not None and time.monotonic() + turns.reports[-1]["seconds"] > until:
                break
            used = worker.cpu_seconds()
            turns.reports.append(worker.step())
            turns.cpu_seconds.append(worker.cpu_seconds() - used)
        turns.peak_bytes = worker.end()
    return turns


def side_by_side(ours: Case, theirs: Case, steps: int, until: float | None) -> tuple[list[Turns], str]:
    """Return both systems' turns and their order: "A B B A" where both run at once, else "blocks"."""
    _check_room(ours)
    if needed_bytes(ours) + needed_bytes(theirs) > SLACK * machine.available_bytes():
        first = _alone(ours, steps if until is None else 1, None)
        return [first, _alone(theirs, len(first.reports), None)], "blocks"
    with Worker(ours) as a, Worker(theirs) as b:
        workers = [a, b]
        turns = [Turns(worker.case.system, [], about=worker.about) for worker in workers]
        warm = sum(worker.step()["seconds"] for worker in workers)
        for number in range(steps):
            if number and until is not None and time.monotonic() + warm > until:
                break
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                before = [worker.cpu_seconds() for worker in workers]
                turns[index].reports.append(workers[index].step())
                used = [worker.cpu_seconds() - known for worker, known in zip(workers, before, strict=True)]
                turns[index].cpu_seconds.append(used[index])
                turns[1 - index].idle_cpu_seconds += used[1 - index]
        for worker, turn in zip(workers, turns, strict=True):
            turn.peak_bytes = worker.end()
    return turns, "A B B A"


def summary(case: Case, turns: Turns, limits: dict[str, float]) -> dict[str, Any]:
    """Return what is saved of a system's timed steps. Step 0 is the warm-up, so the timed ones begin at 1."""
    seconds = [report["seconds"] for report in turns.reports]
    dtype = str((turns.about or {}).get("dtype", "torch.float32")).removeprefix("torch.")
    phases = {name for report in turns.reports for name in report["phases"]}
    found: dict[str, Any] = {
        "seconds": statistics.median(seconds),
        "each": seconds,
        "dtype": dtype,
        "peak_bytes": turns.peak_bytes,
        "idle_cpu_seconds": turns.idle_cpu_seconds,
        "phases": {name: _mean(report["phases"].get(name, 0.0) for report in turns.reports) for name in sorted(phases)},
        "mismatch": _mean(report["mismatch"] for report in turns.reports if report["mismatch"] is not None),
        "about": turns.about,
    }
    counted = [tokens_of(case, 1 + i, report["executed"]) for i, report in enumerate(turns.reports)]
    found["tokens"] = {key: _mean(tokens[key] for tokens in counted) for key in counted[0]}
    return found | _efficiency(case, turns, limits, found)


def _efficiency(case: Case, turns: Turns, limits: dict[str, float], found: dict[str, Any]) -> dict[str, Any]:
    """Decode's milliseconds and share of its roofline, useful training MFU, the step's share of its ideal."""
    autocast = bool(case.options.get("autocast"))
    size, half = size_of(case), found["dtype"] == "bfloat16" or autocast
    flops = limits["bfloat16" if half else "float32"]
    works = [work_of(case, 1 + i) for i in range(len(turns.reports))]
    ideals = [ideal_seconds(size, work, flops, limits["read"], 2 if half else 4) for work in works]
    steps = _mean(report["decode_steps"] for report in turns.reports)
    decode, train = found["phases"].get("decode"), found["phases"].get("train")
    return {
        "ideal_seconds": _mean(ideal.step for ideal in ideals),
        "decode_ms": 1e3 * decode / steps if decode and steps else None,
        "decode_roofline": _mean(ideal.decode for ideal in ideals) / decode if decode else None,
        "train_mfu": _mean(train_flops(size, work) for work in works) / (train * flops) if train else None,
        "step_roofline": _mean(ideal.step for ideal in ideals) / _mean(found["each"]),
    }


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return statistics.fmean(kept) if kept else 0.0
