"""`report.html`: a run on one page that needs only a browser, and shows model text as text.

Charts, groups and whole reports are also values that a notebook's cell shows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.advantages import ADVANTAGE_KINDS
from oncurve.base.errors import ConfigError, suggest
from oncurve.components import as_written, described
from oncurve.metrics import short
from oncurve.report.records import RunRecord, read_run
from oncurve.report.show import TABLES, shown_group, shown_groups
from oncurve.report.templates import charts_of, rendered

FEATURED: list[str] = TABLES["featured"]


def write_report(directory: Path) -> Path:
    """Write `report.html` into a run's directory from the files there; returns its path.

    Can be called while the run goes on.
    Raises RunDirectoryError (not a run), CheckpointError (metrics.jsonl cannot be read), StorageError.
    """
    path = directory / "report.html"
    content = render_report(read_run(directory)).encode("utf-8", "replace")
    if directory.is_dir():  # else it was moved meanwhile
        durable.write_file(path, content)
    return path


def render_report(run: RunRecord) -> str:
    """Return the page's HTML: self-contained, no script, no request to anywhere."""
    metrics, config = run.metrics, run.config or {}
    keys = dict.fromkeys(key for line in metrics for key in line if key not in TABLES["not_drawn"])
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
    for key, label in TABLES["tiles"].items():
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


_CHART_PIXELS, _MOST_PIXELS = 330, 900


class Page:
    """A page of HTML. A notebook's cell shows it in a frame of its own, so its style and the notebook's do not mix.

    html     the whole page, which needs nothing else
    title    what is on it, for `repr`
    pixels   the height of the frame
    path     the file that it was read from, or None
    """

    def __init__(self, html: str, title: str, pixels: int, path: Path | None = None) -> None:
        self.html, self.title, self.path, self._pixels = html, title, path, pixels

    def __repr__(self) -> str:
        """Return what is on the page, and how to see it where no HTML is shown."""
        where = "page.save('page.html') writes it" if self.path is None else f"open {self.path} in a browser"
        return f"<{self.title}: {where}>"

    def _repr_html_(self) -> str:
        """Return the page in a frame."""
        style = f"width:100%;height:{self._pixels}px;border:0"
        return f'<iframe srcdoc="{escape(self.html)}" title="{escape(self.title)}" style="{style}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write the page to a file that does not exist yet. Raises ConfigError: it does. StorageError."""
        file = Path(path)
        if file.exists():
            raise ConfigError(f"{file} exists already; name another file")
        durable.write_file(file, self.html.encode("utf-8", "replace"))
        return file


class ShownGroups(list[dict[str, Any]]):
    """Groups as `group_record` writes them: plain values. A notebook's cell shows texts, rewards and advantages."""

    def __init__(self, records: Iterable[dict[str, Any]], step: int | None = None) -> None:
        super().__init__(records)
        self.step = step

    def __repr__(self) -> str:
        """Return how many there are; `list(groups)` has the values."""
        completions = sum(len(record["completions"]) for record in self)
        at = "" if self.step is None else f" of step {self.step}"
        return f"<{_counted(len(self), 'group')}{at}, {_counted(completions, 'completion')}>"

    def page(self) -> Page:
        """Return the groups on a page, all of them."""
        return _page(repr(self).strip("<>"), 120 + 320 * len(self), groups=self)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()


def report_page(directory: Path | None, metrics: Sequence[Mapping[str, float]], groups: ShownGroups) -> Page:
    """Return the report of a run's directory, which is written again; without one a page of `metrics` and `groups`.

    Raises what `write_report` raises; ConfigError: there is no directory, and no step.
    """
    if directory is None:
        return _page("report of a run without a directory", _MOST_PIXELS, _charts((), metrics), groups)
    path = write_report(directory)
    return Page(path.read_text(encoding="utf-8"), f"report of {directory}", _MOST_PIXELS, path)


def charts_page(keys: Sequence[str], metrics: Sequence[Mapping[str, float]]) -> Page:
    """Return the curves of these metrics, of those on the report's top if none is named.

    Raises ConfigError: no step has such a metric (with the nearest name), or there is no step.
    """
    charts = _charts(keys, metrics)
    title = f"curves of {', '.join(chart['key'] for chart in charts)}"
    return _page(title, 40 + _CHART_PIXELS * -(-len(charts) // 3), charts)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _charts(keys: Sequence[str], metrics: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    known = dict.fromkeys(key for line in metrics for key in line if key != "step")
    if not known:
        raise ConfigError("there is no step to draw yet")
    for key in keys:
        if key not in known:
            raise ConfigError(f"no step has the metric {key!r}{suggest(key, known)}")
    return charts_of(keys or FEATURED, metrics)


def _page(title: str, pixels: int, charts: Sequence[Any] = (), groups: ShownGroups | None = None) -> Page:
    shown = [] if groups is None else [shown_group(groups.step, record) for record in groups]
    html = rendered("cell.html.j2", title=title, charts=charts, groups=shown)
    return Page(html, title, min(_MOST_PIXELS, pixels))
