"""Growth curves: how time and memory grow with G, P, C, M and V, ours and TRL's, with slopes fitted to them.

Each curve isolates one quantity. Training time is that of forward, loss and backward on the same random tokens
(`LocalLearner.accumulate`; `GRPOTrainer.compute_loss` and `backward`), both in bf16, in turn in one process. Memory is
what an update adds to a fresh process. The sampler draws one token per row from float32 logits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.growth.curves import CURVES, Curve, fits, memory_verdict, prompt_verdict, sampler_verdict

__all__ = ["plot", "run", "table"]

ROOT = Path(__file__).parents[2]
SYSTEMS = {"oncurve": "oncurve", "trl": "TRL"}
COLOURS = {"oncurve": "tab:blue", "trl": "tab:orange"}
GROUP_SIZE, VOCABULARY = 8, 8192  # where not swept
TRL_TOKENS = 50_000  # TRL is measured up to batches of so many padded tokens
MEMORY_BASE = {"prompts": 2, "prompt_tokens": 256, "completion": 256, "tokens_per_micro_batch": 4096}
MEMORY_VALUES = {"G": ("group_size", (2, 4, 8, 16, 32, 64)), "M": ("prompts", (1, 4, 8, 16, 32))}
VOCABULARIES = (4096, 16384, 65536, 151936)
SAMPLER_ROWS = 32


def run(quick: bool = False, threads: int | None = None) -> dict[str, Any]:
    """Return all curves, the three verdicts, and how long it took; `quick`: three small points per curve."""
    started = time.monotonic()
    threads = threads or os.cpu_count() or 1
    repeats, seconds = (2, 2.0) if quick else (7, 8.0)
    settings = {"threads": threads, "repeats": repeats, "seconds_a_point": seconds}
    results: dict[str, Any] = {"threads": threads, "training": {}, "memory": {}}
    results["training"], results["gradient_cosine"] = _training(settings, quick)
    results["sampler"] = _sampler(settings, quick)
    for axis, (name, values) in MEMORY_VALUES.items():
        results["memory"][axis] = _memory(name, values[-3:] if quick else values, threads)
    results["verdicts"] = {
        "prompt_slope": prompt_verdict(results["training"]["P"], GROUP_SIZE),
        "memory": memory_verdict(results["memory"]),
        "sampler_slope": sampler_verdict(results["sampler"]),
    }
    return {**results, "quick": quick, "wall_seconds": time.monotonic() - started}


def _worker(part: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a part from a fresh process."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["OMP_NUM_THREADS"] = str(settings["threads"])
    command = [sys.executable, "-m", "bench.growth.worker", part, json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"growth curves, {part} {settings} failed (exit {done.returncode}):\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _training(settings: dict[str, Any], quick: bool) -> tuple[dict[str, Any], float]:
    """Return the curves of training time, and the lowest cosine between the two systems' gradients.

    All points of a vocabulary share a process.
    """
    points = [(key, point) for key, curve in CURVES.items() for point in curve.points(quick)]
    times: dict[str, list[dict[str, list[float]]]] = {key: [] for key in CURVES}
    cosines = []
    for some in _by_vocabulary(points):
        answer = _worker("train", {**settings, "points": [point for _, point in some], "trl_tokens": TRL_TOKENS})
        cosines.append(answer["gradient_cosine"])
        for (key, _), sample in zip(some, answer["points"], strict=True):
            times[key].append(sample)
    return {key: fits(curve, _swept(curve, quick), times[key]) for key, curve in CURVES.items()}, min(cosines)


def _swept(curve: Curve, quick: bool) -> list[int]:
    return [point[curve.axis] for point in curve.points(quick)]


def _by_vocabulary(points: list[tuple[str, dict[str, int]]]) -> Iterator[list[tuple[str, dict[str, int]]]]:
    """Return the points in lists of one vocabulary each, in order of it: a curve's points keep their order."""
    by_size: dict[int, list[tuple[str, dict[str, int]]]] = {}
    for key, point in points:
        by_size.setdefault(point.get("vocabulary", VOCABULARY), []).append((key, point))
    yield from (by_size[size] for size in sorted(by_size))


def _sampler(settings: dict[str, Any], quick: bool) -> dict[str, Any]:
    sizes = VOCABULARIES[:3] if quick else VOCABULARIES
    answer = _worker(
        "sampler", {**settings, "vocabularies": sizes, "rows": SAMPLER_ROWS, "repeats": 5 * settings["repeats"]}
    )
    return fits(Curve("vocabulary", "vocabulary V", sizes, {"rows": SAMPLER_ROWS}), list(sizes), answer["points"])


def _memory(name: str, values: tuple[int, ...], threads: int) -> dict[str, Any]:
    """By system, a point per value: bytes before, the peak, and whether the batch is larger than a micro-batch."""
    found: dict[str, Any] = {"axis": name, "base": MEMORY_BASE}
    points = [{"group_size": GROUP_SIZE, **MEMORY_BASE, name: value} for value in values]
    for system in SYSTEMS:
        own = [point for point in points if system == "oncurve" or _tokens("trl", point) <= TRL_TOKENS]
        answer = _worker("memory", {"system": system, "points": own, "threads": threads})
        found[system] = [
            {"value": point[name], "beyond": _is_beyond(system, name, point), **held}
            for point, held in zip(own, answer["points"], strict=True)
        ]
    return found


def _tokens(system: str, point: dict[str, int], prompts: int | None = None) -> int:
    """Return token positions of the batch, or of `prompts` of its groups: in TRL each prompt counts G times."""
    copies = point["group_size"] if system == "trl" else 1
    group = copies * point["prompt_tokens"] + point["group_size"] * point["completion"]
    return (prompts or point["prompts"]) * group


def _is_beyond(system: str, swept: str, point: dict[str, int]) -> bool:
    """Return whether the batch is larger than a micro-batch; over G, where groups grow: whether one group is."""
    return _tokens(system, point, 1 if swept == "group_size" else None) > point["tokens_per_micro_batch"]


def table(results: dict[str, Any]) -> str:
    """Return the results as a section of the page: the verdicts, then a row per curve."""
    lines = ["| what must show | measured | |", "|---|---|---|"]
    for verdict in results["verdicts"].values():
        value = verdict["value"]
        shown = "-" if value is None else _interval(value) if isinstance(value, list) else f"{value:.2f}"
        lines.append(f"| {verdict['claim']} | {shown} | {'pass' if verdict['pass'] else '**fail**'} |")
    lines += ["", "| curve | from - to | oncurve, ms | TRL, ms | slope of oncurve | slope of TRL | ratio | exponents |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    curves = {f"training over {key}": curve for key, curve in results["training"].items()}
    for name, curve in {**curves, "sampler over V": results["sampler"]}.items():
        lines.append(_curve_line(name, curve))
    lines += ["", "| memory of an update, MB | " + " | ".join(SYSTEMS.values()) + " |", "|---|---|---|"]
    for axis, curve in results["memory"].items():
        theirs = {point["value"]: _added(point) for point in curve["trl"]}
        for point in curve["oncurve"]:
            value = point["value"]
            mark = "" if point["beyond"] else " (within a micro-batch)"
            lines.append(f"| {axis} = {value}{mark} | {_added(point)} | {theirs.get(value, '-')} |")
    note = (
        f"{results['threads']} threads, bf16 in both, a Qwen2 of 2 layers and hidden size 256. Slopes are microseconds "
        "per unit of the axis, by least squares through the medians; the exponent is that between the last two points. "
        f"The two gradients are the same work: their cosine is {results['gradient_cosine']:.5f} at the least. "
        f"Memory is what an update adds, in passes of {MEMORY_BASE['tokens_per_micro_batch']} tokens in both."
    )
    return "\n".join([*lines, "", note])


def _added(point: dict[str, Any]) -> str:
    return f"{(point['peak'] - point['before']) / 1e6:.0f}"


def _interval(value: list[float]) -> str:
    return f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"


def _curve_line(name: str, curve: dict[str, Any]) -> str:
    ours, theirs = curve["oncurve"], curve["trl"]
    ends = [" - ".join(f"{1e3 * own['seconds'][i]:.2f}" for i in (0, -1)) for own in (ours, theirs)]
    if theirs["x"][-1] != ours["x"][-1]:
        ends[1] += f" (to {theirs['x'][-1]})"
    slopes = [f"{1e6 * own['slope']:.3g}" for own in (ours, theirs)]
    share = f"{theirs['slope'] / ours['slope']:.1f}" if ours["slope"] > 0 else "-"
    exponents = f"{ours['exponent']:.2f}, {theirs['exponent']:.2f}"
    cells = [name, f"{ours['x'][0]} - {ours['x'][-1]}", *ends, *slopes, share, exponents]
    return "| " + " | ".join(cells) + " |"


def plot(results: dict[str, Any], path: Path) -> None:
    """A panel a curve, both axes logarithmic: training over P, G, C, M, V, the sampler over V, memory over G and M."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 4, figsize=(15, 7))
    curves = {f"training over {curve['axis']}": curve for curve in results["training"].values()}
    curves[f"sampler over {results['sampler']['axis']}"] = results["sampler"]
    for (title, curve), axes in zip(curves.items(), panels.flat, strict=False):
        for system, label in SYSTEMS.items():
            own = curve[system]
            axes.plot(own["x"], [1e3 * s for s in own["seconds"]], "o-", color=COLOURS[system], label=label)
        axes.set(title=title, xscale="log", yscale="log", ylabel="milliseconds")
    for (axis, curve), axes in zip(results["memory"].items(), list(panels.flat)[len(curves) :], strict=True):
        for system, label in SYSTEMS.items():
            added = [(point["peak"] - point["before"]) / 1e6 for point in curve[system]]
            axes.plot([point["value"] for point in curve[system]], added, "o-", color=COLOURS[system], label=label)
        axes.set(title=f"memory of an update over {axis}", xscale="log", ylabel="MB", ylim=(0, None))
    for axes in panels.flat:
        axes.grid(alpha=0.3)
    panels.flat[0].legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
