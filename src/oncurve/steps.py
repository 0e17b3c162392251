"""Steps of a text: where each ends, as characters and as tokens.

A *step* is a part of a completion with a reward of its own. A splitter gives the ends of steps, as offsets in the text
just after each step. White space alone is no step; white space between two steps belongs to the first, so steps cover
the text from its beginning to the end of the last one.

This module handles text only, because reward workers, which have no tensors, import it.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.base.imports import locate, looking

_CONTEXT_TOKENS = 6  # context that decides the text of the next token, as for a prompt and its completion

Splitter = Callable[[str], list[int]]
"""Text -> the offset just after each step, ascending."""


def lines(text: str) -> list[int]:
    """Return one step per line. Example: `"7*8=56\\n\\n56+31=87"` ends its steps at 8 and 16."""
    return _ends(text, [start + len(line) for start, line in _with_starts(text.splitlines(keepends=True))])


def pieces(text: str, ends: Sequence[int]) -> list[str]:
    """Return the texts of the steps that end at `ends`, in order."""
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def splitter_of(split: str, base: Path | None = None) -> Splitter:
    r"""Return the splitter that a setting names.

    "newline"         one step per line
    "/pattern/"       a step ends after each match of a pattern of Python's `re`: "/\n\n+/", "/(?<=[.!?])\s/"
    "file.py:name"    a function of the text (or "module:name"), that returns the steps' texts in their order, or the
                      offsets just after them

    Raises ConfigError for anything else, for an invalid pattern and for a function that cannot be imported.
    """
    if split == "newline":
        return lines
    if len(split) > 2 and split[0] == split[-1] == "/":
        try:
            pattern = re.compile(split[1:-1])
        except re.error as error:
            raise ConfigError(f"split: {split} holds no regular expression: {error}") from error
        return lambda text: _ends(text, [match.end() for match in pattern.finditer(text)])
    if ":" in split and looking():
        return lines
    if ":" in split:
        function = locate(split, base)
        if not callable(function):
            raise ConfigError(f"split: {split} is no function")
        return lambda text: _ends_of(text, function(text))
    raise ConfigError(
        f'split: {split!r} is unknown; it is "newline", a pattern between slashes like "/\\n\\n+/", or a function '
        'like "file.py:name"'
    )


def _with_starts(parts: Iterable[str]) -> Iterable[tuple[int, str]]:
    start = 0
    for part in parts:
        yield start, part
        start += len(part)


def _ends(text: str, candidates: Iterable[int]) -> list[int]:
    """Return the candidates, and the end of the text, that end a step with more than white space in it.

    White space after a step, up to the next candidate, belongs to the step.
    """
    ends: list[int] = []
    start = 0
    for end in sorted({*candidates, len(text)}):
        if text[start:end].strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        start = end
    return ends


def _ends_of(text: str, returned: Any) -> list[int]:
    """Return the result of a user's function, as offsets. Raises ValueError where it is invalid."""
    given = list(returned)
    if all(isinstance(step, str) for step in given):
        ends, place = [], 0
        for step in given:
            start = text.find(step, place)
            if start < 0 or not step:
                raise ValueError(f"the splitter returned {step!r:.60}, which does not follow in the text")
            place = start + len(step)
            ends.append(place)
        return ends
    if not all(isinstance(end, int) and not isinstance(end, bool) for end in given):
        raise ValueError(f"the splitter returned {given!r:.60}; it must return texts, or offsets")
    if given != sorted(set(given)) or (given and not 0 < given[0] <= given[-1] <= len(text)):
        raise ValueError(f"the splitter returned the offsets {given!r:.60} for a text of {len(text)} characters")
    return given


def token_ends(
    ends: Sequence[int], text: str, ids: Sequence[int], text_of: Callable[[Sequence[int]], str]
) -> tuple[int, ...]:
    """Return the index of the token that writes the last character of each step.

    ends      offsets just after the steps, ascending, in `text`
    text      of the completion, without EOS or stop string
    ids       its tokens, at least one, with those of EOS or stop string
    text_of   from consecutive tokens of it to their text

    A step with only white space after it ends with the completion's last token: EOS or a stop string is part of the
    last step, and scored with it. A token that holds the ends of two steps ends both.

    Time: O(n log n) tokens are turned into text, however many steps there are: each search starts at the step before.
    """
    last, visible = len(ids) - 1, len(text.rstrip())
    found: list[int] = []
    prefixes = _Prefixes(ids, text_of)
    for end in ends:
        if end >= visible:
            found.append(last)
            continue
        low, stride = prefixes.start, 1
        while low + stride < last and prefixes.length(low + stride) < end:
            low, stride = low + stride, stride * 2
        low = bisect_left(range(min(low + stride, last)), end, low, key=prefixes.length)
        found.append(low)
        prefixes.begin_at(low)
    return tuple(found)


class _Prefixes:
    """The lengths of the texts of prefixes, for tokens from `start` on, which only increases."""

    def __init__(self, ids: Sequence[int], text_of: Callable[[Sequence[int]], str]) -> None:
        self.start = 0
        self._ids = ids
        self._text_of = text_of
        self._known: dict[int, int] = {}
        self._before = ""  # text of the tokens from `_first` to `start`; their whole prefix has `_passed` characters
        self._first = self._passed = 0

    def length(self, token: int) -> int:
        """Return the number of characters of `ids[: token + 1]`."""
        if token not in self._known:
            window = self._text_of(self._ids[self._first : token + 1])
            if window.startswith(self._before):
                self._known[token] = self._passed + len(window) - len(self._before)
            else:
                self._known[token] = len(self._text_of(self._ids[: token + 1]))
        return self._known[token]

    def begin_at(self, token: int) -> None:
        """Set `start` to `token`: later texts are decoded from a few tokens before it."""
        passed = self.length(token)
        first = max(0, token + 1 - _CONTEXT_TOKENS)
        before = self._text_of(self._ids[first : token + 1])
        if before and not before.endswith("\ufffd"):  # half a character changes with the next token
            self._first, self._before, self._passed = first, before, passed
        self.start = token
        self._known = {token: passed}
