"""The inputs that determine a run's numbers, so that a resume detects a change: settings, their files, and an id.

Covered: every setting but those that are `free` in `resume.toml`; data, of the hub too, and other files by size and
sha256; the small files of a model's folder likewise, its weights by their size (trained weights come from the
checkpoint). Source code has a sha256 too; a change in it is reported and not refused, because the user must fix a
reward that ended a run before resuming it.
Not covered: imports of a module, the content of a model's hub id, functions that were given as objects.
"""

import json
import math
import os
import re
import secrets
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.base.errors import CheckpointError, DataError, RunDirectoryError, command
from oncurve.components import Component
from oncurve.config import CODE_PATH, FILE_KEYS, IN_MEMORY, MODULE_PATH, Schema, default_tables, to_tables
from oncurve.run.directory.folder import RunDirectory, is_identity
from oncurve.trainer import FORMAT

RESUME: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "resume.toml").read_text(encoding="utf-8"))
"""Which settings decide a run's numbers, and which may change within it."""

SMALL_BYTES = 16 << 20
MODEL_FILES = re.compile(r".*\.(json|safetensors|model|txt|jinja|py)")
LONGEST_SHOWN = 80


@dataclass(frozen=True)
class Differences:
    """The changes that a resume finds: `refused` ones need `--changed`, `reported` ones do not, `wanted` ones are its
    own."""

    refused: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


def identify(config: Component, schema: Schema[Any], base: Path, counts: Collection[str] = ()) -> dict[str, Any]:
    """Return `{"id", "settings", "files"}` of a run that begins now. A key that is not set is there with None, so that
    one which is not there is known to be younger than the run.

    base     where a relative path in a file key starts
    counts   free keys that decide this run's numbers all the same

    Raises DataError: a file is there and cannot be read.
    """
    settings: dict[str, Any] = {}
    files = _contents(config, schema, base)
    known = frozenset(files)
    for key, value in flat(to_tables(config, schema, nones=True)):
        if key in known:
            continue
        if key not in counts and any(fnmatchcase(key, pattern) for pattern in RESUME["free"]):
            continue
        found = _file_of(key, value, base)
        if found is not None:
            try:
                files[key] = {"path": str(found), "parts": _parts(found)}
            except OSError as error:
                raise DataError(f"{key}: {found} cannot be read: {error.strerror}") from error
        if found is None or _is_code(value):
            settings[key] = value
    return {"id": secrets.token_hex(8), "settings": settings, "files": files}


def _contents(config: Component, schema: Schema[Any], base: Path) -> dict[str, Any]:
    """Return what the files of sections hold that say so themselves (`DataSettings.content`), by setting."""
    found: dict[str, Any] = {}
    for name in schema.sections:
        content_of = getattr(getattr(config, name, None), "content", None)
        for key, content in (content_of(base) if callable(content_of) else {}).items():
            parts = {part: list(sized) for part, sized in content.parts.items()}
            found[key] = {"path": content.path, "parts": parts}
    return found


def defaults_of(config: Component, schema: Schema[Any]) -> dict[str, Any]:
    """Return the default of each key in an identity of `config`, for runs that are older than the key."""
    return dict(flat(default_tables(config, schema)))


def compare(
    before: Mapping[str, Any], now: Mapping[str, Any], wanted: Collection[str], defaults: Mapping[str, Any]
) -> Differences:
    """Return the differences, one line each: `key: was, is`, `file: was, is`. The id is not compared.

    wanted    the keys that the resume itself changes
    defaults  of all keys: one that did not exist when the run began is the same where it has its default now
    """
    refused: list[str] = []
    reported: list[str] = []
    asked: list[str] = []
    is_now = now["settings"]
    known = {*wanted, *before.get("files", {})}
    younger = {key: default for key, default in defaults.items() if key not in known}
    was = _with_younger(before.get("settings", {}), is_now, younger)
    for key in sorted({*was, *is_now}):
        same_numbers = RESUME["same_numbers"].get(key, ())
        if was.get(key) == is_now.get(key) or (was.get(key) in same_numbers and is_now.get(key) in same_numbers):
            continue
        if key in before.get("files", {}) and not _is_code(was.get(key)) and key not in now["files"]:
            was = {**was, key: before["files"][key]["path"]}
            if was[key] == is_now.get(key):
                continue  # its file is missing, which its reader reports
        line = f"{key}: was {shown_value(was.get(key))}, is {shown_value(is_now.get(key))}"
        values = [value for value in (was.get(key), is_now.get(key)) if value is not None]
        code = key.startswith("rewards.") and all(_is_code(value) for value in values)
        (asked if key in wanted else reported if code or key in ("run.steps", "run.epochs") else refused).append(line)
    for key in sorted({*before.get("files", {}), *now["files"]}):
        lines = _file_lines(key, before.get("files", {}).get(key), now["files"].get(key))
        for is_code, line in lines:
            (asked if key in wanted else reported if is_code else refused).append(line)
    return Differences(tuple(refused), tuple(reported), tuple(asked))


def _with_younger(was: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `was` with those that did not exist and have their default now, also in tables within."""
    found = dict(was)
    for key, value in now.items():
        if key not in was and key in defaults and value == defaults[key]:
            found[key] = value
        elif all(isinstance(table, Mapping) for table in (was.get(key), value, defaults.get(key))):
            found[key] = _with_younger(was[key], value, defaults[key])
    return found


def take_up(
    held: RunDirectory, now: dict[str, Any], changed: bool, wanted: Collection[str], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str], bool]:
    """Return how the run in `held` continues as `now`; `run.json` is updated if necessary.

    That is its identity from now on, what is printed, and whether it was asked for a setting that decides the numbers.

    `wanted`: the keys that this resume changes itself. With any, `run.json` stays as it is until the caller has the
    run ready and records them. `defaults`: of all keys, see `compare`.

    Raises RunDirectoryError with every other change, unless there is none or `changed` allows them; CheckpointError:
    the checkpoints have another format than this version's.
    """
    records = _records(held.checkpoints)
    record = next(iter(records.values()), None)
    if record is not None and record.get("format") != FORMAT:
        reads = f"this oncurve reads format {FORMAT} alone: resume the run with the version that wrote it"
        raise CheckpointError(f"the checkpoints in {held.path} have format {record.get('format')}, and {reads}")
    before = held.identity()
    notes = []
    if before is None:
        before = dict(record["run"]) if record is not None and is_identity(record.get("run")) else None
        notes = ["run.json is missing or damaged" + (": the newest checkpoint stands in for it" if before else "")]
    if before is None:
        held.keep_identity(now)
        return now, [*notes, "not exact, perhaps: nothing says whether settings or data have changed"], False
    found = compare(before, now, wanted, defaults)
    strange = [name for name, each in records.items() if each.get("run", {}).get("id") != before["id"]]
    refused = [*found.refused, *(f"checkpoints/{name} is a checkpoint of another run" for name in strange)]
    if refused and not changed:
        lines = "\n  ".join(refused)
        raise RunDirectoryError(
            f"{held.path} cannot be resumed exactly, because what it depends on has changed:\n  {lines}\n"
            "Undo the change, or accept a resume that is not exact (in Python: changed=True), by this command with the "
            f"settings that you gave:\n{command('resume', held.path, '--changed')}"
        )
    kept = {**now, "id": before["id"]}
    differences = [*refused, *found.reported]
    if (differences or notes) and not wanted:
        held.keep_identity(kept)
    if differences:
        held.note(_step(record), differences)
        notes.append("not exact: the run goes on, but not to the same numbers, because " + "; ".join(differences))
    return kept, notes, bool(found.wanted)


def steps_done(held: RunDirectory) -> int:
    """Return the step of the newest checkpoint whose record verifies; 0 without one."""
    return _step(next(iter(_records(held.checkpoints).values()), None))


def _records(checkpoints: Path) -> dict[str, dict[str, Any]]:
    """Return the records of the checkpoints by name, newest first; damaged ones are left out."""
    records = {}
    for _, path in reversed(durable.numbered(checkpoints)):
        if not durable.verify(path, only=("state.json",)):
            records[path.name] = durable.read_json(path / "state.json")
    return records


def _step(record: Mapping[str, Any] | None) -> int:
    if record is None:
        return 0
    return int(record.get("done", 0) or record.get("trainer", {}).get("step", 0))


def flat(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the settings of nested tables by dotted key (`rewards.0.weight`), with values that JSON can hold."""
    for section, table in tables.items():
        items = enumerate(table) if isinstance(table, list) else [(None, table)]
        for index, item in items:
            place = section if index is None else f"{section}.{index}"
            for key, value in item.items():
                yield f"{place}.{key}", storable(value)


def storable(value: Any) -> Any:
    """Return a value for JSON: numbers that are not finite as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: storable(inner) for key, inner in value.items()}
    return [storable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_code(value: Any) -> bool:
    """Return whether a setting names a function or class: "file.py:name", "module:name", or an object."""
    if not isinstance(value, str):
        return False
    return bool(value.startswith(IN_MEMORY) or CODE_PATH.fullmatch(value) or MODULE_PATH.fullmatch(value))


def _file_of(key: str, value: Any, base: Path) -> Path | None:
    """Return the file or folder that a setting names; None: it names none, or one that does not exist."""
    if not isinstance(value, str) or not value or "\0" in value or value.startswith(IN_MEMORY):
        return None
    section, _, name = key.partition(".")
    code, module = CODE_PATH.fullmatch(value), MODULE_PATH.fullmatch(value)
    with suppress(OSError):
        if code is not None:
            file = base / Path(code[1]).expanduser()
            return file if file.is_file() else None
        if module is not None:
            return _module_file(module[1], base)
        if os.path.isabs(value) or (section, name) in FILE_KEYS:
            path = base / value
            return path if path.is_file() or path.is_dir() else None
    return None


def _module_file(name: str, base: Path) -> Path | None:
    """Return the source of a module, found as an import would find it, and not imported."""
    inner = Path(*name.split("."))
    for folder in (base, *map(Path, sys.path)):
        for file in ((folder / inner).with_suffix(".py"), folder / inner / "__init__.py"):
            if file.is_file():
                return file
    return None


def _parts(path: Path) -> dict[str, list[Any]]:
    """Return `{name: [size, sha256]}` of a file ("") or of a model's folder, where large files have no sha256."""
    if path.is_file():
        return {"": [path.stat().st_size, durable.sha256(path)]}
    found = {}
    for file in sorted(path.iterdir()):
        if file.is_file() and MODEL_FILES.fullmatch(file.name):
            size = file.stat().st_size
            found[file.name] = [size, durable.sha256(file) if size <= SMALL_BYTES else None]
    return found


def _file_lines(key: str, was: Any, now: Any) -> list[tuple[bool, str]]:
    """Return `(is source code, line)` for each difference of a file or folder."""
    if was is None or now is None:
        return []  # the changed setting is reported, or the reader reports that the file is missing
    lines = []
    for name in sorted({*was["parts"], *now["parts"]}):
        old, new = was["parts"].get(name), now["parts"].get(name)
        if old != new:
            path = now["path"] + (f"/{name}" if name else "")
            lines.append((path.endswith(".py"), f"{key}: {path}: was {_content(old)}, is {_content(new)}"))
    return lines


def _content(part: list[Any] | None) -> str:
    if part is None:
        return "not there"
    size, digest = part
    return f"{size:,} bytes" + (f" (sha256 {digest[:12]}…)" if digest else "")


def shown_value(value: Any) -> str:
    """Return a setting's value for a message, cut where it is long."""
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"
