"""The cells of the main table: oncurve beside each other system at the same work, step by step in the order A B B A.

Both workers live at once where memory allows; where not, one goes after the other and the results say so. A cell's
pairs are kept as they are done.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bench import machine, roofline
from bench.cases import CELLS, SYSTEMS, Case
from bench.counting import ideal_seconds, size_of, tokens_of, train_flops, work_of
from bench.process import BenchError, NoRoomError, Worker
from bench.results import Results
from bench.timing import ratio_interval
from oncurve.models.packing import packed_bytes

__all__ = ["PAIRS", "STEPS", "best_peer", "run"]

TRL = ("trl-bf16", "trl-fp32", "trl-autocast", "trl-continuous")
PAIRS: dict[str, tuple[str, ...]] = {
    "6.5M fixed": (*TRL, "rlox", "oncurve-fp32"),
    "6.5M natural": (*TRL, "oncurve-fp32"),
    "38M fixed": TRL,
    "38M natural": TRL,
    "494M fixed": (*TRL, "oncurve-lean"),
    "494M natural": TRL,
}
"""What stands beside oncurve in each cell. Another setting of oncurve is run alone: for its memory and its seconds."""

STEPS = {"6.5M": 5, "38M": 5, "494M": 3}
QUICK = {"6.5M fixed": 5, "6.5M natural": 5, "494M fixed": 2}
QUICK_SECONDS = 455.0
"""A quick run begins no round of a cell that would end later than this; what follows takes seconds."""

RLOX_PROMPT_TOKENS = 80  # it takes prompts of one length only; both systems get these

SLACK = 0.9  # of the memory that can be had


@dataclass
class Turns:
    """The reports of a worker's timed steps, its peak memory, and what it burned while it waited."""

    system: str
    reports: list[dict[str, Any]]
    peak_bytes: int = 0
    idle_cpu_seconds: float = 0.0
    about: dict[str, Any] | None = None


def run(results: Results, quick: bool, only: str | None = None, started: float | None = None) -> None:
    """Measure every pair that the present code has not measured; the machine's limits before and after each.

    One system beside oncurve in every cell, then the next, so that a run that is stopped has seen all cells.

    Raises BenchError at the end where a system failed; a pair that there is no memory for is left out, and says so.
    """
    begun = time.monotonic() if started is None else started
    names = [name for name in (QUICK if quick else PAIRS) if only is None or name.startswith(only)]
    if not names:
        raise BenchError(f"no cell begins with {only!r}; there are: {', '.join(PAIRS)}")
    limits: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for name, other in [(name, best_peer(results, name)) for name in names] if quick else in_rounds(names):
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
    """Cells and what stands beside oncurve in them: the first of every cell, the second of every cell, ..."""
    pairs = [(name, other) for name in names for other in PAIRS[name]]
    return sorted(pairs, key=lambda pair: PAIRS[pair[0]].index(pair[1]))


def best_peer(results: Results, name: str) -> str:
    """TRL's fastest setting in this cell by the whole run on this machine; bf16 weights where there is none."""
    from bench.results import default_path

    whole = Results.read(default_path(quick=False)).get("cells", {}).get(name, {})
    own = {**whole, **results.table.get("cells", {}).get(name, {})}
    medians = {key: own[key]["systems"][key]["seconds"] for key in TRL if "systems" in own.get(key, {})}
    return min(medians, key=lambda key: medians[key]) if medians else "trl-bf16"


def _keep_pair(
    results: Results, name: str, other: str, steps: int, until: float | None, limits: dict[str, dict[str, Any]]
) -> None:
    """Measure a pair and keep it. `limits`: the machine's for the model of the pair before, as measured after it."""
    case = CELLS[name] if other != "rlox" else replace(CELLS[name], prompt_tokens=RLOX_PROMPT_TOKENS)
    alone = other.startswith("oncurve")
    print(f"{name}: {other if alone else f'oncurve beside {other}'} ...", flush=True)
    before = limits.get(case.model) or roofline.measure(case.model, case.threads)
    limits.clear()
    if alone:
        turns, order = [_alone(case.under(other), steps, until)], "alone"
    else:
        turns, order = _side_by_side(case, case.under(other), steps, until)
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
    """What a worker will hold at its most, roughly: by parameter, and 10 copies of all completions' float32 logits.

    oncurve never has those logits; its activations are taken as a twentieth of what it holds by parameter, and there
    are the weights packed for decoding.
    """
    size = size_of(case)
    parameters = size.body_parameters + size.head_parameters
    held = SYSTEMS[case.system].bytes_per_parameter * parameters
    if case.system.startswith("oncurve"):
        return 1e9 + 1.05 * held + packed_bytes(2 * parameters, half=True)
    return 0.8e9 + held + 10 * 4.0 * case.rows * case.completion * size.vocabulary


def _check_room(case: Case) -> None:
    needs, there = needed_bytes(case), machine.available_bytes()
    if needs > SLACK * there:
        raise NoRoomError(f"{case.system} needs about {needs / 1e9:.0f} GB here, and there are {there / 1e9:.0f} GB")


def _alone(case: Case, steps: int, until: float | None) -> Turns:
    _check_room(case)
    with Worker(case) as worker:
        turns = Turns(case.system, [], about=worker.about)
        worker.step()
        for _ in range(steps):
            if turns.reports and until is not None and time.monotonic() + turns.reports[-1]["seconds"] > until:
                break
            turns.reports.append(worker.step())
        turns.peak_bytes = worker.end()
    return turns


def _side_by_side(ours: Case, theirs: Case, steps: int, until: float | None) -> tuple[list[Turns], str]:
    """Both systems' turns and the order they were taken in: "A B B A" while both live, else "blocks"."""
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
                waiting = workers[1 - index]
                burned = waiting.cpu_seconds()
                turns[index].reports.append(workers[index].step())
                turns[1 - index].idle_cpu_seconds += waiting.cpu_seconds() - burned
        for worker, turn in zip(workers, turns, strict=True):
            turn.peak_bytes = worker.end()
    return turns, "A B B A"


def summary(case: Case, turns: Turns, limits: dict[str, float]) -> dict[str, Any]:
    """What is kept of a system's timed steps. Steps are counted from 0, the warm-up, so the timed ones begin at 1."""
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
    autocast = bool(case.told.get("autocast"))
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
