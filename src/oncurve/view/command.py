"""The command: a server on this machine alone, its address, and a browser that opens it.

A copy of chosen steps is one page that opens from a file, without a server and without a request.
"""

import base64
import gzip
import json
import os
import re
import secrets
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from oncurve import durable
from oncurve.base.errors import ConfigError, OncurveError, RunDirectoryError, shown
from oncurve.base.output import complain, say
from oncurve.base.paths import usable_path
from oncurve.report import link, steps_in_words
from oncurve.view.front import TABLES, page
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
            try:
                flips = library.flips(run, *place)
            except OncurveError as error:
                complain(f"{error}: left out")
            else:
                yield "flips", (run, *place), flips
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
    found, lines = dict[str, Any](to=0, more=True), list[dict[str, float]]()
    while found["more"]:
        found = library.metrics(run, found["to"])
        lines += found["lines"]
    return {"from": 0, "to": 0, "more": False, "lines": lines}


def _all_rows(library: Library, run: str, step: int) -> dict[str, Any]:
    found = library.groups(run, step, count=MOST_ROWS)
    rows = found["rows"]
    while len(rows) < found["total"] and (more := library.groups(run, step, start=len(rows), count=MOST_ROWS)["rows"]):
        rows += more
    return {**found, "rows": rows}


PORT = 8765
"""The first port that is tried; the next free one is taken where none is named."""


def view(folder: Path, port: int | None, browser: bool, at: str | None = None) -> None:
    """Serve the runs in and below `folder` until the process is interrupted; the first line printed is the address.

    `at` is the link `#/run/...` at which the page opens.
    Raises ConfigError: the extra is not installed, the port is taken, `at` is no link. RunDirectoryError: there is no
    such folder, run or step.
    """
    try:
        import uvicorn

        from oncurve.view.server import application
    except ImportError as error:
        raise ConfigError("oncurve view needs its extra: pip install oncurve[view]") from error
    key, library = secrets.token_urlsafe(24), Library(existing(folder))
    opens = _place(at, library)
    with _listening(port) as listening:
        number = listening.getsockname()[1]
        address = f"http://127.0.0.1:{number}/#key={key}{opens[1:].rstrip('/')}"
        settings = uvicorn.Config(application(library, key), **TABLES["server"])
        say(address)
        say(f"It answers this machine alone; elsewhere: ssh -L {number}:127.0.0.1:{number} HOST. Ctrl-C ends it.")
        sys.stdout.flush()
        with _opened(address if browser else None):
            uvicorn.Server(settings).run(sockets=[listening])


def _place(at: str | None, library: Library) -> str:
    """Return the link at which the page opens. Raises ConfigError: it is none. RunDirectoryError: it leads nowhere."""
    if at is None:
        return next((link(name) for name, path in library.names().items() if path == library.root), "#/")
    if not at.startswith("#/"):
        raise ConfigError(f"--at: expected a link such as '#/run/40/3', got {shown(at)}")
    name, step = map(unquote, [*at[2:].split("/"), ""][:2])
    try:
        kept = library.run(name)["kept"] if name else ()
    except KeyError as error:
        raise RunDirectoryError(f"--at: {library.root} has no run {shown(name)}") from error
    if step.isdecimal() and int(step) not in kept:
        raise RunDirectoryError(f"--at: no groups of step {step} are kept; of: {steps_in_words(kept, int(step))}")
    return at


def copy_runs(folder: Path, out: Path, steps: str | None) -> Path:
    """Write a copy of the runs in and below `folder` that opens without a server; returns its page.

    steps   "1,10,20-25"; None: the first and the last that each run has kept
    Raises ConfigError: they are no such numbers, or `out` has files. RunDirectoryError, StorageError.
    """
    chosen = None if steps is None else [step for part in steps.split(",") for step in _steps(part)]
    return write_copy(Library(existing(folder)), usable_path(out, "--export"), chosen)


def _steps(part: str) -> range:
    match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
    if match is None:
        raise ConfigError(f"--steps: expected numbers and ranges like 1,10,20-25, got {shown(part)}")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def existing(folder: Path) -> Path:
    """Return a folder that is there. Raises RunDirectoryError: it is not."""
    path = usable_path(folder, "DIR")
    if not path.is_dir():
        raise RunDirectoryError(f"{path} is not a folder. Name one that holds runs, or a run; the default is runs.")
    return path


@contextmanager
def _listening(port: int | None) -> Iterator[socket.socket]:
    """Return a socket on 127.0.0.1: at `port`, or where None at the first that is free of some. Raises ConfigError."""
    tried = [port] if port is not None else [*range(PORT, PORT + 10), 0]
    for number in tried:
        try:
            listening = socket.create_server(("127.0.0.1", number), backlog=64)
        except OSError:
            continue
        with listening:
            yield listening
        return
    raise ConfigError(f"--port: {port} is taken or not allowed; name another, or leave it out")


@contextmanager
def _opened(address: str | None) -> Iterator[None]:
    """Return a context in which a browser shows `address`, if there is a screen; it stands in a file that only this
    user reads, because other users see the words of a command.
    """
    if address is None or not (sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()):
        yield
        return
    with tempfile.NamedTemporaryFile("w", suffix=".html", dir=os.environ.get("XDG_RUNTIME_DIR")) as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
        file.flush()
        with suppress(webbrowser.Error):
            webbrowser.open(Path(file.name).as_uri())
        yield
