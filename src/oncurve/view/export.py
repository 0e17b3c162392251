"""A copy of chosen steps as one page that opens from a file, without a server and without a request."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.base.errors import ConfigError, OncurveError
from oncurve.view.front import page
from oncurve.view.library import MOST_ROWS, Library, encoded


def write_copy(library: Library, folder: Path, steps: Sequence[int] | None) -> Path:
    """Write `folder/index.html` with the curves of all runs and the groups of `steps`; returns its path.

    None: the first and the last step whose groups are kept. Raises ConfigError: the folder has files, or no run has
    such a step. StorageError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty; nothing in it is overwritten. Name another folder.")
    parts: list[str] = []
    keys: dict[str, int] = {}
    for question, arguments, value in _answers(library, steps):
        keys["\n".join([question, *map(str, arguments)])] = len(parts)
        parts.append(base64.b64encode(gzip.compress(encoded(value), 6, mtime=0)).decode())
    if steps and not any(key.startswith("groups\n") for key in keys):
        raise ConfigError(f"no run in {library.root} has the groups of {'such steps' if len(steps) > 1 else steps[0]}")
    named = base64.b64encode(json.dumps(keys).encode()).decode()
    elements = [f'<script type="text/plain" id="copy">{named}</script>']
    elements += [f'<script type="text/plain" id="copy{number}">{part}</script>' for number, part in enumerate(parts)]
    folder.mkdir(parents=True, exist_ok=True)
    durable.write_file(folder / "index.html", page("\n".join(elements)).encode())
    return folder / "index.html"


def _answers(library: Library, steps: Sequence[int] | None) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Return (question, its arguments, answer) of everything that the copy can show."""
    yield "declared", (), library.declared()
    yield "runs", (), library.runs()
    for run in library.names():
        about = library.run(run)
        kept = about["kept"]
        chosen = sorted({*kept[:1], *kept[-1:]}) if steps is None else [step for step in kept if step in steps]
        yield "run", (run,), {**about, "kept": chosen}
        yield "metrics", (run,), _whole_metrics(library, run)
        try:
            yield "doctor", (run,), library.doctor(run)
        except OncurveError:
            yield "doctor", (run,), None
        if evaluations := about["evaluations"]:
            place = evaluations[0], evaluations[-1]
            yield "flips", (run, *place), (flips := library.flips(run, *place))
            for number in (each["problem"] for each in flips["problems"] if not each["change"].startswith("still")):
                yield "flips", (run, *place, number), library.flips(run, *place, number)
        by_prompt: dict[int, list[dict[str, Any]]] = {}
        for step in chosen:
            rows = _all_rows(library, run, step)
            yield "groups", (run, step), rows
            yield "changed", (run, step), library.changed(run, step)
            for row in rows["rows"]:
                yield "group", (run, step, row["group"]), library.group(run, step, row["group"])
                by_prompt.setdefault(row["prompt_id"], []).append({"step": step, **row})
        for prompt, found in by_prompt.items():
            yield "prompt", (run, prompt), found


def _whole_metrics(library: Library, run: str) -> dict[str, Any]:
    found = library.metrics(run)
    lines, more = found["lines"], found["more"]
    while more:
        found = library.metrics(run, found["to"])
        lines, more = lines + found["lines"], found["more"]
    return {"from": 0, "to": 0, "more": False, "lines": lines}


def _all_rows(library: Library, run: str, step: int) -> dict[str, Any]:
    found = library.groups(run, step, count=MOST_ROWS)
    rows = found["rows"]
    while len(rows) < found["total"] and (more := library.groups(run, step, start=len(rows), count=MOST_ROWS)["rows"]):
        rows += more
    return {**found, "rows": rows}
