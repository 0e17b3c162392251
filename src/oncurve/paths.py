"""What can be a path: names and files that a file system can hold and that reading comes to an end of."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from oncurve.errors import ConfigError, shown

__all__ = ["not_a_file", "path_component", "usable_path", "working_directory"]

LONGEST_PATH, LONGEST_NAME = 4000, 255
"""Bytes of a path and of one name in it, beyond which file systems refuse to look."""


def usable_path(path: str | Path, where: str, base: Path | None = None) -> Path:
    """`path` with `~` filled in. `where` is the option or setting that holds it; it is relative to `base`, or to the
    working directory.

    Raises ConfigError for what no file system can hold: NUL, names or paths that are too long, an unknown `~user`;
    and for what this user may not look at.
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
    if _closed((base or Path()) / found):
        raise ConfigError(
            f"{where}: {shown(str(found))} cannot be reached: this user has no permission to read it, or to search a "
            "folder above it; give the permission, or name another path"
        )
    return found


def _closed(path: Path) -> bool:
    """Whether permissions hide whether anything lies at `path`, or what lies in that folder."""
    try:
        return stat.S_ISDIR(path.stat().st_mode) and not os.access(path, os.R_OK | os.X_OK)
    except PermissionError:
        return True
    except OSError:  # it is not there, or leads nowhere: what uses it says so
        return False


def working_directory() -> Path:
    """Where relative paths start. Raises ConfigError where that folder was deleted."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(f"the working directory cannot be used ({error.strerror}); cd to one that exists") from error


def not_a_file(path: Path) -> str | None:
    """ "a pipe", "a device" or "a socket": what reading could wait for, or never end at; None: it is none of these."""
    try:
        mode = path.stat().st_mode
    except OSError:  # it is not there, or cannot be reached: reading says which
        return None
    kinds = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for is_one, name in kinds if is_one(mode)), None)


def path_component(name: str) -> str:
    """`name`, if it can be the name of a file or a folder. Raises ValueError with what is wrong."""
    if any(character in "/\\" or not character.isprintable() for character in name):
        raise ValueError("a name has no slash, backslash or unprintable character: it may become the name of a folder")
    if not name.strip() or name != name.strip() or name.startswith("."):
        raise ValueError("a name is not empty and does not begin with a dot, nor begin or end with a space")
    if len(name.encode("utf-8", "replace")) > 100:
        raise ValueError("a name has at most 100 bytes")
    return name
