"""What can go wrong, by whose hand. Every message says what, where, and how to mend it.

A `UserError` is the user's to mend: the command line prints its message without a traceback and exits
with code 2. Anything else that escapes is a defect of oncurve and keeps its traceback.
"""

from __future__ import annotations

import shlex

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ModelError",
    "OncurveError",
    "RewardError",
    "RunDirectoryError",
    "TrainingError",
    "UserError",
    "command",
    "shown",
]


class OncurveError(Exception):
    """Base of every error oncurve raises on purpose."""


class UserError(OncurveError):
    """Bad input: shown as a message, exit code 2."""


class ConfigError(UserError):
    """A setting is unknown, impossible, or made meaningless by the others."""


class DataError(UserError):
    """A data file or row cannot be used; the message names file, line and column."""


class ModelError(UserError):
    """A model or tokenizer cannot be loaded or used as asked."""


class RewardError(UserError):
    """A reward broke its contract (wrong length, or a fault with `on_error = "raise"`)."""


class RunDirectoryError(UserError):
    """The run directory exists already, is missing, or is not a run."""


class CheckpointError(OncurveError):
    """A checkpoint does not verify or does not fit this run."""


class TrainingError(OncurveError):
    """Training stopped itself: non-finite updates in a row, or a whole step without a valid reward."""


def command(*words: object) -> str:
    """`oncurve` with these words, quoted where a shell would read them otherwise: what a message asks the user to run.

    Example: `command("eval", "my run")` is `oncurve eval 'my run'`.
    """
    return shlex.join(["oncurve", *map(str, words)])


def shown(value: object) -> str:
    """`repr(value)`, cut where it would fill the screen; also of a number too long to be written out."""
    try:
        text = repr(value[:200] if isinstance(value, str) else value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 200 and text.isprintable() else f"{text[:120]}... ({len(text):,} characters)"
