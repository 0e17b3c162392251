"""The page of the site for users of other tools, from the tables of the translators."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from oncurve.compat import DIALECTS, Dialect, Key
from oncurve.metrics import METRICS

WIDTH = 120

HEAD = """\
# Coming from another tool

The words differ between tools, the numbers almost nowhere. For each tool: what its settings become here, which defaults
differ, which settings have no meaning and why, and what is refused with what to do. A translated run gets the tool's
own defaults, and the printed recipe says so per key. Unknown keys are errors that name the nearest one.

"""

METRICS_HEAD = """\

## Metrics

The nearest quantities side by side; [metrics](metrics.md) has the formulas and says where definitions differ.

| oncurve | TRL | verl |
|---|---|---|
"""


def page() -> str:
    """Return the whole page: a section per tool, and the metrics."""
    dialects = list(known())
    index = "".join(f"* [{heading(dialect)}](#{anchor(heading(dialect))})\n" for dialect, _ in dialects)
    sections = "".join("\n" + "\n".join(section(dialect, about)) for dialect, about in dialects)
    rows = (
        f"| `{name}` | {code(metric.trl)} | {code(metric.verl)} |\n"
        for name, metric in METRICS.items()
        if metric.trl or metric.verl
    )
    return f"{HEAD}{index}* [Metrics](#metrics)\n{sections}{METRICS_HEAD}{''.join(rows)}"


def section(dialect: Dialect, about: str) -> Iterator[str]:
    """Return the lines of one tool: its text, and a table per fate of its keys."""
    yield from (f"## {heading(dialect)}", "", about.strip(), "")
    fates: dict[str, list[Key]] = {"translated": [], "refused": [], "no meaning": []}
    for key in dialect.keys:
        fates[key.fate].append(key)
    yield from ("| setting there | here | difference |", "|---|---|---|")
    yield from (f"| `{key.theirs}` | {ours(key)} | {cell(key.note)} |" for key in fates["translated"])
    if applied := [key for key in dialect.keys if key.applied and key.ours]:
        yield from ("", f"### Defaults of {dialect.tool} that you get", "", "| setting there | default | here |")
        yield "|---|---|---|"
        yield from (f"| `{key.theirs}` | {code(json.dumps(key.default))} | {ours(key)} |" for key in applied)
    if fates["refused"]:
        yield from ("", f"### Refused, of {dialect.tool}", "", "| setting there | why, and what to do | no error |")
        yield "|---|---|---|"
        yield from (f"| `{key.theirs}` | {cell(key.note)} | {harmless(key)} |" for key in fates["refused"])
    if fates["no meaning"]:
        yield from ("", f"### Without meaning here, of {dialect.tool}", "")
        yield from by_reason(fates["no meaning"])
    yield ""


def by_reason(keys: Iterable[Key]) -> Iterator[str]:
    """Return a list item per reason, with the keys that have it."""
    reasons: dict[str, list[str]] = {}
    for key in keys:
        reasons.setdefault(key.note, []).append(f"`{key.theirs}`")
    for reason, names in reasons.items():
        text = f"* {reason}: {', '.join(names)}"
        yield from textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def heading(dialect: Dialect) -> str:
    """For example: `OpenRLHF 0.11`."""
    return f"{dialect.tool} {dialect.version}"


def ours(key: Key) -> str:
    """Return the settings here, as code."""
    return ", ".join(f"`{name}`" for name in key.ours)


def harmless(key: Key) -> str:
    """Return the values that are no error."""
    return ", ".join(code(json.dumps(value)) for value in key.harmless)


def cell(text: str) -> str:
    """Return text for a cell of a table: on one line, without bars, and without stars and brackets that are
    Markdown.
    """
    plain = " ".join(text.split()).replace("|", "\\|")
    return plain.replace("*", "\\*").replace("[[", "\\[[").replace("<", "&lt;")


def code(text: str) -> str:
    """Return `text` as inline code in a cell; "" stays."""
    return "`{}`".format(text.replace("|", "\\|")) if text else ""


def anchor(name: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return "".join(letter for letter in name.lower().replace(" ", "-") if letter.isalnum() or letter in "_-")


def known() -> Iterator[tuple[Dialect, str]]:
    """Return each tool's table and text."""
    for module in DIALECTS.values():
        found: Any = import_module(module)
        yield found.DIALECT, found.ABOUT
