"""`report.html`: a run on one page that needs only a browser, and shows model text as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from oncurve import durable
from oncurve.advantages import ADVANTAGE_KINDS
from oncurve.components import as_written, described
from oncurve.metrics import short
from oncurve.report.charts import charts_of
from oncurve.report.groups import shown_groups
from oncurve.report.records import RunRecord, read_run
from oncurve.report.templates import rendered

FEATURED = (
    "reward/mean",
    "rewards/",
    "eval/accuracy",
    "reward_model/heldout_accuracy",
    "policy/kl",
    "policy/entropy",
    "completions/length",
    "groups/constant",
    "curriculum/always_right",
    "curriculum/always_wrong",
    "optim/grad_norm",
    "advantage/abs_mean",
    "completions/truncated",
)
"""The curves at the top; "rewards/" is each component of the reward, where there are several."""

NOT_DRAWN = frozenset({"step", "progress/prompts_seen", "policy/kl_coef", "optim/updates"})


def write_report(directory: Path) -> Path:
    """Write `report.html` into a run's directory from the files there; returns its path.

    Can be called while the run goes on.
    Raises RunDirectoryError (not a run), CheckpointError (metrics.jsonl cannot be read), StorageError.
    """
    path = directory / "report.html"
    durable.write_file(path, render_report(read_run(directory)).encode("utf-8", "replace"))
    return path


def render_report(run: RunRecord) -> str:
    """Return the page's HTML: self-contained, no script, no request to anywhere."""
    metrics, config = run.metrics, run.config or {}
    keys = dict.fromkeys(key for line in metrics for key in line if key not in NOT_DRAWN)
    featured = _featured(list(keys))
    advantage = as_written(config.get("advantage"), ADVANTAGE_KINDS, "grpo")
    return rendered(
        "report.html.j2",
        name=str(run.setting("run", "name") or run.directory.resolve().name),
        run=run,
        config=config,
        seconds=round(math.fsum(line.get("time/step", 0.0) for line in metrics)),
        tiles=_tiles(run),
        charts=charts_of(featured, metrics),
        more_charts=charts_of([key for key in keys if key not in featured], metrics),
        begin=shown_groups(run, run.steps[:1]),
        end=shown_groups(run, run.steps[-1:] if len(run.steps) > 1 else ()),
        environment={key: str(value) for key, value in (run.environment or {}).items() if value},
        advantage=None if advantage is None else described(advantage),
    )


def _featured(keys: Sequence[str]) -> list[str]:
    parts = [key for key in keys if key.startswith("rewards/")]
    found = {"rewards/": parts if len(parts) > 1 else []}
    featured = FEATURED if "reward/mean" in keys else ("policy/objective_loss", "eval/loss", *FEATURED)
    return [key for name in featured for key in found.get(name, [name] if name in keys else [])]


def _tiles(run: RunRecord) -> list[tuple[str, str, str]]:
    """Return (label, value, note) of the big numbers at the top: held-out accuracy where it was measured first."""
    tiles = []
    found = [(line["step"], line["eval/accuracy"]) for line in run.metrics if {"step", "eval/accuracy"} <= line.keys()]
    if found:
        (start, first), (end, last) = found[0], found[-1]
        value = f"{100 * first:.1f} → {100 * last:.1f}\xa0%" if len(found) > 1 else f"{100 * last:.1f}\xa0%"
        times = [f"after step {step:.0f}" if step else "before training" for step in dict.fromkeys((start, end))]
        tiles.append(("held-out accuracy, greedy", value, " → ".join(times)))
    ends = max(1, len(run.metrics) // 10)
    for key, label in (
        ("reward/mean", "reward"),
        ("eval/loss", "held-out loss, nats per token"),
        ("completions/length", "length, tokens"),
        ("policy/kl", "KL, nats per token"),
    ):
        values = [line[key] for line in run.metrics if key in line]
        if values:
            first, last = (math.fsum(part) / len(part) for part in (values[:ends], values[-ends:]))
            note = "first to last step" if ends == 1 else f"mean of the first and of the last {ends} steps"
            tiles.append((label, f"{short(first, 2)} → {short(last, 2)}", note))
    tokens = math.fsum(line.get("tokens/sampled", 0.0) for line in run.metrics)
    if tokens:
        seconds = math.fsum(line.get("time/step", 0.0) for line in run.metrics)
        rate = f"{short(tokens / seconds)} per second" if seconds else ""
        tiles.append(("tokens sampled", short(tokens), rate))
    return tiles
