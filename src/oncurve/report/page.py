"""`report.html`: a run on one page that needs nothing but a browser, and shows model text as text and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from oncurve import durable
from oncurve.report.charts import HEIGHT, WIDTH, Chart, chart_of, format_number
from oncurve.report.groups import shown_groups, visible
from oncurve.report.records import RunRecord, read_run

__all__ = ["render_report", "write_report"]

FEATURED = (
    "reward",
    "reward/",
    "eval/accuracy",
    "reward_model_heldout_accuracy",
    "kl",
    "entropy",
    "completion_length",
    "constant_groups",
    "grad_norm",
    "advantage_abs",
    "truncated_fraction",
)
"""The curves to see first; "reward/" is each reward by itself, where there are several."""

ADVANTAGES = {
    "group": "(reward − mean of the group) / standard deviation of the group",
    "batch": "(reward − mean of the group) / standard deviation of the batch",
    "none": "reward − mean of the group",
}
NOT_DRAWN = frozenset({"step", "prompts_seen", "kl_coef", "updates"})


@dataclass(frozen=True)
class Tile:
    """One big number at the top."""

    label: str
    value: str
    note: str


def write_report(directory: Path, notices: Sequence[str] = ()) -> Path:
    """Write `report.html` into a run's directory from what lies there; returns its path.

    `notices` are sentences to put at the top, such as why nothing was learned. Can be called while the run goes on.
    Raises RunDirectoryError (not a run), CheckpointError (metrics.jsonl cannot be read), StorageError.
    """
    path = directory / "report.html"
    durable.write_file(path, render_report(read_run(directory), notices).encode("utf-8", "replace"))
    return path


def render_report(run: RunRecord, notices: Sequence[str] = ()) -> str:
    """The page's HTML: self-contained, no script, no request to anywhere; every text from the run is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("oncurve", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    metrics = _with_evaluation(run)
    keys = dict.fromkeys(key for line in metrics for key in line if key not in NOT_DRAWN)
    featured = _featured(list(keys))
    return environment.get_template("report.html.j2").render(
        name=visible(str(_at(run.config or {}, "run", "name") or run.directory.resolve().name)),
        facts=[visible(fact) for fact in _facts(run)],
        tiles=_tiles(run),
        notices=[visible(notice) for notice in (*notices, *run.damage)],
        charts=_charts(featured, metrics),
        more_charts=_charts([key for key in keys if key not in featured], metrics),
        begin=shown_groups(run, run.steps[:1]),
        end=shown_groups(run, run.steps[-1:] if len(run.steps) > 1 else ()),
        config=visible(run.config_text),
        environment=[(visible(key), visible(str(value))) for key, value in (run.environment or {}).items()],
        advantage=ADVANTAGES.get(str(_at(run.config or {}, "advantage", "scale")), ADVANTAGES["group"]),
        width=WIDTH,
        height=HEIGHT,
    )


def _featured(keys: Sequence[str]) -> list[str]:
    parts = [key for key in keys if key.startswith("reward/")]
    found = {"reward/": parts if len(parts) > 1 else []}
    return [key for name in FEATURED for key in found.get(name, [name] if name in keys else [])]


def _charts(keys: Sequence[str], metrics: Sequence[Mapping[str, float]]) -> list[Chart]:
    return [chart for key in keys if (chart := chart_of(key, metrics)) is not None]


def _with_evaluation(run: RunRecord) -> list[Mapping[str, float]]:
    """The metrics, with the evaluations before and after the run as the first and last points of `eval/accuracy`."""
    metrics: list[Mapping[str, float]] = list(run.metrics)
    before, after = (_accuracy(run, when) for when in ("before", "after"))
    if before is not None:
        metrics.insert(0, {"step": 0.0, "eval/accuracy": before[0]})
    if after is not None and metrics and "eval/accuracy" not in metrics[-1]:
        metrics.append({"step": metrics[-1]["step"], "eval/accuracy": after[0]})
    return metrics


def _accuracy(run: RunRecord, when: str) -> list[float] | None:
    accuracy = ((run.evaluation or {}).get(when) or {}).get("greedy_accuracy")
    return accuracy if isinstance(accuracy, list) and len(accuracy) == 3 else None


def _facts(run: RunRecord) -> list[str]:
    """What was trained, how far, where: the line below the title."""
    config, environment = run.config or {}, run.environment or {}
    facts = [str(value) for value in (_at(config, "model", "path"), config.get("extends")) if value]
    if run.metrics:
        last = int(run.metrics[-1].get("step", len(run.metrics)))
        planned = _at(config, "run", "steps")
        facts.append(f"step {last} of {planned}" if planned else f"{last} steps")
        facts.append(_duration(math.fsum(line.get("seconds", 0.0) for line in run.metrics)))
    device = environment.get("device")
    if device:
        threads = environment.get("threads")
        facts.append(
            f"cpu, {threads} thread{'s' if threads != 1 else ''}" if device == "cpu" and threads else str(device)
        )
    return facts


def _at(table: Mapping[str, Any], section: str, key: str) -> Any:
    inner = table.get(section)
    return inner.get(key) if isinstance(inner, Mapping) else None


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _tiles(run: RunRecord) -> list[Tile]:
    """The numbers to see first: held-out accuracy where it was measured, then how reward, KL and signal moved."""
    tiles = []
    before, after = _accuracy(run, "before"), _accuracy(run, "after")
    if after is not None:
        value = f"{100 * before[0]:.1f} → {100 * after[0]:.1f}\xa0%" if before else f"{100 * after[0]:.1f}\xa0%"
        interval = f"95\xa0% interval {100 * after[1]:.1f} to {100 * after[2]:.1f}\xa0%"
        tiles.append(Tile("held-out accuracy, greedy", value, interval))
    ends = max(1, len(run.metrics) // 10)
    for key, label in (("reward", "reward"), ("completion_length", "length, tokens"), ("kl", "KL, nats a token")):
        values = [line[key] for line in run.metrics if key in line]
        if values:
            first, last = (math.fsum(part) / len(part) for part in (values[:ends], values[-ends:]))
            note = "first to last step" if ends == 1 else f"mean of the first and of the last {ends} steps"
            tiles.append(Tile(label, f"{format_number(first, 2)} → {format_number(last, 2)}", note))
    tokens = math.fsum(line.get("tokens", 0.0) for line in run.metrics)
    if tokens:
        seconds = math.fsum(line.get("seconds", 0.0) for line in run.metrics)
        rate = f"{format_number(tokens / seconds)} a second" if seconds else "sampled and learned from"
        tiles.append(Tile("tokens written", format_number(tokens), rate))
    return tiles
