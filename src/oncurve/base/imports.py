"""Code by its path: `package.module:Name`, or `file.py:name`."""

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.base.paths import not_a_file, usable_path, working_directory

FILE_MODULE = "oncurve_file_"
"""How the names of modules that are imported from files begin."""


@dataclass
class Trust:
    """The way in which this process treats what a configuration brings.

    given   all is trusted
    asks    a command: it asks on a terminal, and names what the user's own recipes bring
    known   what is trusted as well, in the words of `oncurve.config.brought_by`
    seen    the files that were asked about or named already
    """

    given: bool = False
    asks: bool = False
    known: frozenset[str] = frozenset()
    seen: set[Path] = field(default_factory=set)


_TRUST: ContextVar[Trust] = ContextVar("trust")


def trust_now() -> Trust:
    """Return the trust that holds here."""
    return _TRUST.get(Trust())


@contextmanager
def trusting(given: bool = False, asks: bool = False, known: Sequence[str] = ()) -> Iterator[Trust]:
    """Set the trust in what configurations bring; what was given outside stays given."""
    outer = trust_now()
    token = _TRUST.set(Trust(given or outer.given, asks or outer.asks, outer.known | frozenset(known), outer.seen))
    try:
        yield trust_now()
    finally:
        _TRUST.reset(token)


def trust_all(given: bool) -> bool:
    """Trust all that configurations bring, from now on, if it is `given`."""
    if given:
        trust_now().given = True
    return given


_LOOKING: ContextVar[bool] = ContextVar("looking")


def looking() -> bool:
    """Return whether this command only looks, so that it imports no code of a configuration."""
    return _LOOKING.get(False)


@contextmanager
def only_looking() -> Iterator[None]:
    """Return a context in which no code is imported by its path."""
    token = _LOOKING.set(True)
    try:
        yield
    finally:
        _LOOKING.reset(token)


def locate(path: str, base: Path | None = None) -> Any:
    """Return the object at `"package.module:Name"` or `"file.py:name"`. A relative file is found in `base` (else here).

    A file is imported once in a process, whatever the spelling of its path; its folder is importable while it
    loads. Raises ConfigError: no such module, file or attribute (with the nearest name), or the import failed.
    """
    if looking():
        raise ConfigError(f"{shown(path)} is code, and this command runs none")
    source, colon, name = path.rpartition(":")
    if not colon or not source or not name:
        raise ConfigError(f"{shown(path)} is not a path to code; write 'package.module:name' or 'file.py:name'")
    module = import_file(source, base) if source.endswith(".py") else _import_module(source)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_")]
            raise ConfigError(f"{source} has no {name!r}{suggest(part, public)}")
        found = getattr(found, part)
    return found


def _import_module(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(missing + ".")):
            fix = "for a file write 'path/to/file.py:name'; a package must be installed where oncurve runs"
            raise ConfigError(f"there is no module {name!r}; {fix}") from error
        raise ConfigError(f"importing {name} failed: {_reason(error)}") from error


def imported_files() -> dict[str, str]:
    """Return the files that `import_file` has imported, by the names of their modules, in order: another process that
    imports them finds the same names.
    """
    return {name: str(module.__file__) for name, module in list(sys.modules.items()) if name.startswith(FILE_MODULE)}


def import_file(source: str, base: Path | None = None) -> types.ModuleType:
    """Return the module of a file, relative to `base`. Raises ConfigError: there is none, or the import failed."""
    file = ((base or working_directory()) / usable_path(source, "a path to code", base)).resolve()
    name = f"{FILE_MODULE}{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    special = not_a_file(file)
    if special is not None:
        raise ConfigError(f"{file} is {special}, and code is read from files; name a file")
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"importing {file} failed: {_reason(error)}") from error
    finally:
        sys.path.remove(str(file.parent))
    return module


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    line = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{line}"
