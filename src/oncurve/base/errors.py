"""The exceptions. Every message says what is wrong, where, and how to fix it.

A `UserError` is an error of input: the command line prints its message without a traceback and exits with
code 2. A `CheckpointError` or `TrainingError` is printed likewise, with exit code 1. Any other exception that
escapes is a defect of oncurve and keeps its traceback.
"""

import difflib
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Raised = TypeVar("Raised", bound=BaseException)


class OncurveError(Exception):
    """Base of every error oncurve raises on purpose."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """IPython's hook for the lines that a cell shows: the message, as on the command line, without frames."""
        return [f"{type(self).__name__}: {self}", *notes_of(self)]


class UserError(OncurveError):
    """Bad input: shown as a message, exit code 2."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A setting is unknown, impossible, or without effect next to the others."""


class DataError(UserError):
    """A data file or row cannot be used; the message names file, line and column."""


class ModelError(UserError):
    """A model or tokenizer cannot be loaded, or not used as the settings say."""


class RewardError(UserError):
    """A reward broke its contract (wrong length, or a fault with `on_error = "raise"`)."""


class RunDirectoryError(UserError):
    """The run directory exists already, is missing, or is not a run."""


class CheckpointError(OncurveError):
    """A checkpoint does not verify or does not fit this run."""


class TrainingError(OncurveError):
    """Training cannot continue: consecutive non-finite updates, or a whole step without a valid reward."""


class LostFileError(TrainingError):
    """A file that is open in a run's folder was deleted, moved or replaced, perhaps with the whole folder.

    `since`: when it was there last, such as "step 40 was written".
    """

    def __init__(self, file: Path, since: str) -> None:
        super().__init__(
            f"{file.parent}: the folder, or {file.name} in it, was deleted, moved or replaced by another after {since}."
            " What is written would be kept nowhere, so the run ends. If the folder was moved, `oncurve resume` goes "
            "on where it is now, from its newest checkpoint. If it was deleted, its steps and checkpoints are lost, "
            "and the same command begins again"
        )


class LostStateError(TrainingError):
    """A part of what is trained is lost, which only a checkpoint has: the run can go back to its last one.

    cause    the first thing that went wrong, without `advice`, which is what to do where the run does not go back
    """

    def __init__(self, cause: str, advice: str = "") -> None:
        super().__init__(f"{cause}. {advice}" if advice else cause)
        self.cause = cause


@contextmanager
def noted(problems: list[str], where: str = "") -> Iterator[None]:
    """Add what is wrong to `problems`, after `where`, and go on: all of it is told at once."""
    try:
        yield
    except UserError as error:
        problems.append(f"{where}{error}")


def refuse(problems: Iterable[str]) -> None:
    """Raise a ConfigError with a line for each problem, if there are any."""
    if lines := list(problems):
        raise ConfigError("\n".join(lines))


def notes_of(error: BaseException) -> list[str]:
    """Return the lines of advice that stand below an error."""
    return list(getattr(error, "__notes__", ()))


def without_frames(error: Raised) -> Raised:
    """Return `error`, of which a notebook's cell shows the message alone, as of an `OncurveError`."""
    vars(error)["_render_traceback_"] = lambda: [f"{type(error).__name__}: {error}", *notes_of(error)]
    return error


def command(*words: object) -> str:
    """Return the command line `oncurve` with these words, quoted for a shell: for messages that suggest a command.

    Example: `command("eval", "my run")` is `oncurve eval 'my run'`. A program that was started as `python -m oncurve`,
    or by a path that PATH does not find, says so in place of `oncurve`: its user may have no other.
    """
    start, program = ["oncurve"], Path(sys.argv[0])
    if program.parts[-2:] == ("oncurve", "__main__.py"):
        start = [*sys.orig_argv[:1], "-m", "oncurve"]
    elif program.name == "oncurve" and shutil.which("oncurve") != str(program):
        start = [str(program)]
    named = (f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words)
    return shlex.join([*start, *named])


def shown(value: object) -> str:
    """Return `repr(value)`, shortened where it is long or unprintable; a value too large for `repr` is named by its
    type.
    """
    try:
        text = repr(value[:200] if isinstance(value, str) else value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 200 and text.isprintable() else f"{text[:120]}... ({len(text):,} characters)"


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option most like `word`, if one is similar enough."""
    names = list(options)
    word = word[:100]
    close = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1, cutoff=0.6)
    return next((name for name in names if close and name.lower() == close[0]), None)


def suggest(word: str, options: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the option most like `word`, or `""`."""
    near = nearest(word, options)
    return f"; did you mean {near!r}?" if near is not None else ""
