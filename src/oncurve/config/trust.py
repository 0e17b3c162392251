"""Folders from elsewhere: what a run folder brings that runs, is asked or is sent, and whether this user made it.

A key of the user's own signs what each run brings that this user begins or resumes here, in `run.json`. What is not
signed must be trusted before any code is imported: by an answer, `--trust`, or `trust=True` in Python.
Not covered: the content of code that a signed folder names by its path.
"""

import hashlib
import hmac
import json
import os
import secrets
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.base.imports import trust_now
from oncurve.base.output import complain, visible
from oncurve.base.paths import PRESETS, RECIPES
from oncurve.config.layers import CODE_PATH, MODULE_PATH, Layer, from_mapping

SIGNATURES = "signatures"
MADE_HERE = "made here"
"""What is signed of every run, also of one that brings nothing."""
TEXTS = ("template", "system", "name", "model", "stop", "pattern")
"""Keys of text, which may look like a path to code."""
_WHOLE = ("vllm_arguments", "command")
"""Lists that are one command."""

SENDING = {("tracking", "to", "wandb"), ("tracking", "to", "trackio")}
OF_A_RUN = ("run.json", "environment.json", ".lock", "metrics.jsonl", "checkpoints", "model")


def signatures(run_id: str, folder: Path, *configs: bytes) -> list[str]:
    """Return this user's signatures of all that a run's `config.toml` brings; none where no key can be kept."""
    try:
        key = _key()
        tables = [tomllib.loads(config.decode()) for config in configs]
    except (OSError, ValueError, RecursionError):
        return []
    lines = {MADE_HERE, *(line for table in tables for line in brought(from_mapping(table, "", folder).assignments))}
    return sorted(_signature(key, run_id, line) for line in lines)


def unsigned(folder: Path, lines: Sequence[str]) -> list[str]:
    """Return those of the `lines` that this user has not signed in `run.json` of the run in `folder`.

    Where that is damaged, the records of checkpoints stand in for it.
    """
    records = sorted(folder.glob("checkpoints/step-*/state.json"), reverse=True)
    for file in (folder / "run.json", *records):
        with suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
            found, key = json.loads(file.read_bytes()), _key()
            found = found["run"] if file in records else found
            run_id, signed = str(found["id"]), set(found[SIGNATURES])
            return [line for line in lines if _signature(key, run_id, line) not in signed]
    return list(lines)


def _signature(key: bytes, run_id: str, line: str) -> str:
    return hmac.new(key, f"{run_id}\n{line}".encode(), hashlib.sha256).hexdigest()


def check_trust(layers: Sequence[Layer]) -> None:
    """Name or refuse what files of settings bring, before any of it is imported.

    Raises ConfigError: a run folder from elsewhere brings something that is not trusted.
    """
    trust = trust_now()
    for layer in layers:
        file = layer.file
        if file is None or file in trust.seen or file.is_relative_to(PRESETS) or file.is_relative_to(RECIPES):
            continue
        lines = [line for line in brought(layer.assignments) if line not in trust.known]
        of_run = layer.of_run or (
            file.name == "config.toml" and any((file.parent / name).exists() for name in OF_A_RUN)
        )
        if of_run:
            lines = unsigned(file.parent, lines)
        if lines and not trust.given and (of_run or file.stat().st_uid != os.getuid()):
            _ask(file, lines, trust.asks)
        elif lines and trust.asks:
            complain(visible(f"{file} brings {'; '.join(lines)}"))
        trust.seen.add(file)


def brought(assignments: Sequence[tuple[tuple[str | int, ...], Any]]) -> list[str]:
    """Return a line for each path to code, address and environment variable in settings."""
    found, left = list[str](), list(reversed(list(assignments)))
    while left:  # no recursion: tables may be nested beyond its limit
        path, value = left.pop()
        if isinstance(value, Mapping):
            left.extend(((*path, str(inner)), each) for inner, each in reversed(list(value.items())))
        elif isinstance(value, list | tuple) and path[-1] not in _WHOLE:
            left.extend(((*path, number), value[number]) for number in reversed(range(len(value))))
        else:
            found += _brought(path, value)
    return list(dict.fromkeys(found))


def _brought(path: tuple[str | int, ...], value: Any) -> Iterator[str]:
    key, name = ".".join(map(str, path)), next((part for part in reversed(path) if isinstance(part, str)), "")
    if name in ("api_key_env", "env_pass") and value:
        yield f"environment variable {value} ({key})"
    elif name in ("trust_remote_code", *_WHOLE) and value:
        yield f"{key} = {json.dumps(value, default=str)}"
    elif isinstance(value, str) and ("://" in value or path == ("cluster", "address") or (*path[:2], value) in SENDING):
        yield f"address {value} ({key})"
    elif isinstance(value, str) and name not in TEXTS and (CODE_PATH.fullmatch(value) or MODULE_PATH.fullmatch(value)):
        yield f"code {value} ({key})"


def _ask(file: Path, lines: Sequence[str], asks: bool) -> None:
    listed = "\n".join(f"  {line}" for line in lines)
    without = ""
    try:
        _key()
    except OSError as error:
        without = f" (no key of this user can be kept: {error.strerror or error})"
    said = visible(
        f"{file} brings what this user's oncurve has not written there on this machine{without}:\n{listed}\n"
    )
    if asks and os.isatty(0) and os.isatty(2):
        complain(f"{said}Its code runs with all your rights, and it sends these variables. Go on? [y/N]")
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise ConfigError(
        f"{said}Nothing of it was imported and nothing was sent. If you trust all of it, give the command again with "
        "--trust (in Python: trust=True); docs/trust.md says what can be done without"
    )


def _key() -> bytes:
    """Return the user's key, 32 random bytes, made on first use. Raises OSError: it cannot be kept."""
    base = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    if not base.is_absolute():
        raise OSError("there is no home")
    file = base / "oncurve" / "key"
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = file.with_name(f"key-{secrets.token_hex(8)}")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(secrets.token_bytes(32))
                opened.flush()
                os.fsync(opened.fileno())
            with suppress(FileExistsError):  # another process was first
                os.link(fresh, file)
        finally:
            fresh.unlink(missing_ok=True)
    key, about = file.read_bytes(), file.stat()
    if len(key) != 32 or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise OSError(f"{file} is not this user's alone, or damaged: remove it")
    return key
