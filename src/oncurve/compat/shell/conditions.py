"""The tests of a shell script, `[ ... ]`, `[[ ... ]]` and `test ...`: true, false, or not known."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence

from oncurve.compat.shell.outputs import LONGEST
from oncurve.compat.shell.tokens import RawWord
from oncurve.compat.shell.values import UNKNOWN, Values

_OF_TEXT: dict[str, Callable[[str], bool]] = {
    "-z": lambda text: not text,
    "-n": bool,
    "-f": os.path.isfile,
    "-d": os.path.isdir,
    "-e": os.path.exists,
    "-s": lambda path: os.path.isfile(path) and os.path.getsize(path) > 0,
}
_OF_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}


def truth_of(words: Sequence[RawWord], values: Values) -> bool | None:
    """Whether a test holds; None: a value in it is not known, or the test is one that is not read."""
    first = words[0].plain
    if first == "[[":
        texts = [values.text(word) for word in words[1:]]
    else:
        texts = [item.text for word in words[1:] for item in values.fields(word)]
    texts = [values.in_test(text) for text in texts]
    if first != "test" and texts and texts[-1] in ("]", "]]"):
        texts = texts[:-1]
    return _joined(texts, ("||", "-o"), lambda part: _all(part, values, first == "[["), True)


def _all(texts: list[str], values: Values, patterns: bool) -> bool | None:
    return _joined(texts, ("&&", "-a"), lambda part: _one(part, values, patterns), False)


def _joined(
    texts: list[str], links: tuple[str, str], of: Callable[[list[str]], bool | None], decisive: bool
) -> bool | None:
    parts: list[list[str]] = [[]]
    for text in texts:
        if text in links and parts[-1]:
            parts.append([])
        else:
            parts[-1].append(text)
    found = [of(part) for part in parts]
    if decisive in found:
        return decisive
    return None if None in found else not decisive


def _one(texts: list[str], values: Values, patterns: bool) -> bool | None:
    if texts[:1] == ["!"] and len(texts) > 1:
        found = _one(texts[1:], values, patterns)
        return None if found is None else not found
    if any(UNKNOWN.search(text) for text in texts):
        return None
    if len(texts) <= 1:
        return bool(texts and texts[0])
    if len(texts) == 2 and texts[0] == "-v":
        return values.variable(texts[1]) is not None if texts[1].isidentifier() else None
    if len(texts) == 2 and texts[0] in _OF_TEXT:
        return _OF_TEXT[texts[0]](texts[1])
    if len(texts) != 3 or max(len(text) for text in texts) > LONGEST:
        return None
    left, operation, right = texts
    if operation in ("=", "==", "!="):
        same = fnmatch.fnmatchcase(left, right) if patterns else left == right
        return same == (operation != "!=")
    if operation in _OF_NUMBERS:
        try:
            return _OF_NUMBERS[operation](int(left or "0"), int(right or "0"))
        except ValueError:
            return None
    return None
