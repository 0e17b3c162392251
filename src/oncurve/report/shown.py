"""Charts, groups and whole reports as values that a notebook's cell shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.base.errors import ConfigError, suggest
from oncurve.report.charts import charts_of
from oncurve.report.groups import shown_group
from oncurve.report.page import FEATURED, write_report
from oncurve.report.templates import rendered

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
