"""The lists of docs/stability.md. Run as a script, it writes them into the page, to be looked at before a commit."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

import oncurve
import oncurve.compat.trl
from oncurve.cli import app
from oncurve.config.sentences.plan import KINDS
from oncurve.metrics import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "stability.md"


def lists() -> dict[str, str]:
    """Return each list of the page by its name."""
    kinds = {section: found for section, found in KINDS.items() if len(found) > 1}
    metrics = groupby(sorted(METRICS), key=lambda name: name.partition("/")[0])
    return {
        "python": block({"oncurve": oncurve.__all__, "oncurve.compat.trl": oncurve.compat.trl.__all__}),
        "commands": block(dict(commands(typer.main.get_command(app)))),
        "keys": block({section: keys(classes.values()) for section, classes in KINDS.items()}),
        "kinds": block(kinds),
        "metrics": block({group: [name.partition("/")[2] or name for name in names] for group, names in metrics}),
    }


def keys(classes: Iterable[Any]) -> set[str]:
    """Return the keys that at least one of the classes has."""
    return {name for cls in classes for name in cls.model_fields}


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Return each command with its options."""
    for name, found in sorted(group.commands.items()):
        if hasattr(found, "commands"):
            yield from commands(found, f"{name} ")
        else:
            shown = [parameter for parameter in found.params if not getattr(parameter, "hidden", False)]
            yield prefix + name, [option for parameter in shown for option in parameter.opts if option[:2] == "--"]


def block(named: dict[str, Iterable[str]]) -> str:
    """Return a line for each name, with its sorted members."""
    lines = [f"{name}: {', '.join(sorted(members))}".rstrip(": ") for name, members in named.items()]
    wrapped = [
        textwrap.wrap(line, 116, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in lines
    ]
    return "\n".join(line for each in wrapped for line in each)


def filled(page: str) -> str:
    """Return the page with its lists as they are now."""
    for name, text in lists().items():
        page = re.sub(rf"(<!-- list: {name} -->\n```text\n).*?(```)", rf"\g<1>{text}\n\2", page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
