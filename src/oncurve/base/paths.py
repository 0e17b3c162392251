"""Checks of paths: valid names, permissions, and files that can be read to an end."""

import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oncurve.base.errors import ConfigError, shown

LONGEST_PATH, LONGEST_NAME = 4000, 255
"""Bytes of a path and of one name in it; file systems refuse longer ones."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_FILE_OF_ROWS = re.compile(r".*\.(jsonl?|parquet|csv|tsv|txt|gz|zst|zip|xlsx|arrow)", re.IGNORECASE)


def usable_path(path: str | Path, where: str, base: Path | None = None) -> Path:
    """Return `path` with `~` expanded. `where` names its option or setting; it is relative to `base`, or to the working
    directory.

    Raises ConfigError for an invalid path (NUL, too long, an unknown `~user`), and for one that this user may not read.
    """
    text = str(path)
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: a path cannot hold half a character, as {shown(text)} does") from error
    if "\x00" in text:
        raise ConfigError(f"{where}: a path cannot hold the character NUL, as {shown(text)} does")
    if len(encoded) > LONGEST_PATH or max(map(len, encoded.split(b"/"))) > LONGEST_NAME:
        raise ConfigError(
            f"{where}: too long for a path: {len(text):,} characters; file systems take {LONGEST_PATH:,}, and "
            f"{LONGEST_NAME} for one name"
        )
    try:
        found = Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{where}: {shown(text)}: there is no home directory of that user") from error
    drive = _DRIVE.match(text)
    if ("\\" in text or drive) and not os.path.lexists((base or Path()) / found):
        linux = (f"/mnt/{text[0].lower()}/" + text[2:].lstrip("\\/") if drive else text).replace("\\", "/")
        raise ConfigError(
            f"{where}: there is no {shown(text)}, and paths have slashes here, as in {shlex.quote(linux)}"
            + (" (where WSL has the drive); a shell takes backslashes away unless they are quoted" if drive else "")
        )
    if _closed((base or Path()) / found):
        raise ConfigError(
            f"{where}: {shown(str(found))} cannot be reached: this user has no permission to read it, or to search a "
            "folder above it; give the permission, or name another path"
        )
    return found


@contextmanager
def permitted() -> Iterator[None]:
    """Return a context in which a file or folder that this user may not read or write is a ConfigError with its
    path.
    """
    try:
        yield
    except PermissionError as error:
        if error.filename is None:
            raise
        place = os.fsdecode(error.filename)
        raise ConfigError(f"{place}: permission denied; change its permissions, or name another") from error


def _closed(path: Path) -> bool:
    """Return whether permissions prevent access to `path`, or to the entries of that folder."""
    try:
        return stat.S_ISDIR(path.stat().st_mode) and not os.access(path, os.R_OK | os.X_OK)
    except PermissionError:
        return True
    except OSError:  # it does not exist: its reader reports that
        return False


def working_directory() -> Path:
    """Return the working directory. Raises ConfigError where it was deleted."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(f"the working directory cannot be used ({error.strerror}); cd to one that exists") from error


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def kind_of_entry(mode: int) -> str:
    """Return the kind of an entry with this `st_mode`, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def not_a_file(path: Path) -> str | None:
    """ "a pipe", "a device" or "a socket", which reading could wait for, or never end; None: it is none of these."""
    try:
        kind = kind_of_entry(path.stat().st_mode)
    except OSError:  # missing or not accessible: its reader reports that
        return None
    return None if kind in ("a folder", "a file") else kind


def path_component(name: str) -> str:
    """Return `name`, if it can be the name of a file or a folder. Raises ValueError with what is wrong."""
    if any(character in "/\\" or not character.isprintable() for character in name):
        raise ValueError("a name has no slash, backslash or unprintable character: it may become the name of a folder")
    if not name.strip() or name != name.strip() or name.startswith("."):
        raise ValueError("a name must not be empty, begin with a dot, or begin or end with a space")
    if len(name.encode("utf-8", "replace")) > 100:
        raise ValueError("a name has at most 100 bytes")
    return name


def names_rows(name: str) -> bool:
    """Return whether a file is called like one of rows: `train.jsonl`, `rows.parquet`."""
    return _FILE_OF_ROWS.fullmatch(name) is not None


def is_data_set_id(path: str) -> bool:
    """Return whether a path that does not exist may be a data set's id on the hub: `owner/name`, without a file's
    suffix.
    """
    return _HUB_ID.fullmatch(path) is not None and not names_rows(path)


PRESETS = Path(__file__).parents[1] / "presets"
RECIPES = Path(__file__).parents[1] / "recipes"
SUFFIXES = (".toml", ".yaml", ".yml")


def shipped(folder: Path) -> dict[str, Path]:
    """Return the recipes in `PRESETS` or `RECIPES` by name, which is the path in the folder without the suffix."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES)
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
