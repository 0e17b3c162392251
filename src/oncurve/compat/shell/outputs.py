"""What a shell makes of a text by itself: the output of a few commands, and `${name%pattern}` and its relatives."""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
import time
from collections.abc import Callable, Sequence

from oncurve.base.errors import ConfigError
from oncurve.compat.shell.tokens import RawWord, tokens_of

LONGEST = 4000
"""Characters of a text that patterns are looked for in: the time grows with their square."""

_IMPORTS = re.compile(
    r"\s*python3?\s+-c\s+(['\"])import (?P<module>\w+)\1\s*(?:[0-9]*&?>\S+\s*|2>&1\s*)*"
    r"&&\s*echo (?P<there>[\w.-]+)\s*\|\|\s*echo (?P<missing>[\w.-]+)\s*"
)


def output_of(text: str, value: Callable[[RawWord], str]) -> str | None:
    """The output of `$(text)`, where it is known without executing it; `value` expands a word."""
    imports = _IMPORTS.fullmatch(text[:LONGEST])
    if imports is not None:
        return imports["there"] if _is_there(imports["module"]) else imports["missing"]
    try:
        tokens = tokens_of(text)
    except ConfigError:
        return None
    words = [each for each in tokens if isinstance(each, RawWord)]
    known = _OUTPUTS.get(words[0].plain or "") if words and len(words) == len(tokens) else None
    if known is None or any(_splits(word) for word in words):
        return None
    return known([value(word) for word in words[1:]])


def _splits(word: RawWord) -> bool:
    """Whether a word may become several: an unquoted array."""
    return word.array is not None or any(part.text == "@" or part.text.endswith("[@]") for part in word.parts)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _date(arguments: Sequence[str]) -> str | None:
    if len(arguments) != 1 or not re.fullmatch(r"\+(%[a-zA-Z%]|[^%])*", arguments[0]):
        return None
    return time.strftime(arguments[0][1:])


def _one_path(change: Callable[[str], str]) -> Callable[[Sequence[str]], str | None]:
    return lambda arguments: change(arguments[0]) if len(arguments) == 1 and arguments[0][:1] != "-" else None


_OUTPUTS: dict[str, Callable[[Sequence[str]], str | None]] = {
    "date": _date,
    "pwd": lambda arguments: None if arguments else os.getcwd(),
    "basename": _one_path(lambda path: os.path.basename(path.rstrip("/"))),
    "dirname": _one_path(lambda path: os.path.dirname(path.rstrip("/")) or "."),
    "echo": lambda arguments: None if arguments and arguments[0][:1] == "-" else " ".join(arguments),
}


def changed(value: str, op: str, argument: str) -> str | None:
    """`${value` with `#`, `%`, `/`, `:`, `,` or `^`: a part left out or replaced, or other letters; None: not read."""
    if len(value) > LONGEST or len(argument) > LONGEST:
        return None
    if op[0] in ",^":
        change = str.lower if op[0] == "," else str.upper
        return None if argument else change(value) if len(op) == 2 else change(value[:1]) + value[1:]
    if op[0] == "/":
        return _replaced(value, op, argument)
    if op == ":":
        found = re.fullmatch(r" *([0-9]{1,6}| -[0-9]{1,6})(?::([0-9]{1,6}))?", argument)
        start = int(found[1]) if found else 0
        if found is None or -start > len(value):
            return None
        return value[start:][: int(found[2])] if found[2] else value[start:]
    longest, ends = len(op) == 2, range(len(value) + 1)
    matches = re.compile(fnmatch.translate(argument)).match
    for end in reversed(ends) if longest else ends:
        if matches(value[:end] if op[0] == "#" else value[len(value) - end :]):
            return value[end:] if op[0] == "#" else value[: len(value) - end]
    return value


def _replaced(value: str, op: str, argument: str) -> str | None:
    """`${value/pattern/instead}`, and with `//` each one that matches."""
    pattern, _, instead = argument.partition("/")
    if not pattern:
        return value if op == "/" else None
    if pattern[0] in "#%" or "&" in instead:
        return None
    found = re.compile(fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z"))
    return found.sub(lambda _: instead, value, count=0 if op == "//" else 1)
