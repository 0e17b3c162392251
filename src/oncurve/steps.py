"""Steps of a text: where each ends, as characters and as tokens.

A *step* is a stretch of a completion that is judged by itself. A splitter says where steps end, as offsets in the text
just behind each step; a step that holds nothing but white space is none. White space between two steps belongs to the
one before it, so steps cover the text from its beginning to the end of the last one.

Text only: this is loaded in reward workers, which have no tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from oncurve.errors import ConfigError
from oncurve.spec import locate

__all__ = ["Splitter", "lines", "pieces", "splitter_of", "token_ends"]

_CONTEXT_TOKENS = 6  # enough of them to tell how the next token reads behind them, as for a prompt and its completion

Splitter = Callable[[str], list[int]]
"""Text -> the offset just behind each step, ascending."""


def lines(text: str) -> list[int]:
    """A step a line. Example: `"7*8=56\\n\\n56+31=87"` ends its steps at 8 and 16."""
    return _ends(text, [start + len(line) for start, line in _with_starts(text.splitlines(keepends=True))])


def pieces(text: str, ends: Sequence[int]) -> list[str]:
    """The texts of the steps that end at `ends`, one after another."""
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def splitter_of(split: str, base: Path | None = None) -> Splitter:
    r"""The splitter that a setting names.

    "newline"         a step a line
    "/pattern/"       a step ends behind each match of a pattern of Python's `re`: "/\n\n+/", "/(?<=[.!?])\s/"
    "file.py:name"    a function of the text (or "module:name"), that returns the steps' texts in their order, or the
                      offsets just behind them

    Raises ConfigError for anything else, and for a pattern or a function that cannot be had.
    """
    if split == "newline":
        return lines
    if len(split) > 2 and split[0] == split[-1] == "/":
        try:
            pattern = re.compile(split[1:-1])
        except re.error as error:
            raise ConfigError(f"split: {split} holds no regular expression: {error}") from error
        return lambda text: _ends(text, [match.end() for match in pattern.finditer(text)])
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
    """The candidates that end a step: one of the text's end too, and none where nothing but white space was added.

    White space behind a step, up to the next candidate, moves its end.
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


def _ends_of(text: str, said: Any) -> list[int]:
    """What a function of the user's returned, as offsets. Raises ValueError, with what is wrong about it."""
    given = list(said)
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
        raise ValueError(f"the splitter returned {given!r:.60}; it is to return texts, or offsets")
    if given != sorted(set(given)) or (given and not 0 < given[0] <= given[-1] <= len(text)):
        raise ValueError(f"the splitter returned the offsets {given!r:.60} for a text of {len(text)} characters")
    return given


def token_ends(
    ends: Sequence[int], text: str, ids: Sequence[int], text_of: Callable[[Sequence[int]], str]
) -> tuple[int, ...]:
    """The index of the token that writes the last character of each step.

    ends      offsets just behind the steps, ascending, in `text`
    text      of the completion, without what ended it
    ids       its tokens, at least one, with those that ended it
    text_of   the text of some tokens of it, one behind another

    A step with only white space behind it ends with the completion's last token: what ends a completion (an EOS, a stop
    string) is part of its last step, and judged with it. A token that holds the ends of two steps ends both.

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
        high = min(low + stride, last)
        while low < high:
            middle = (low + high) // 2
            if prefixes.length(middle) >= end:
                high = middle
            else:
                low = middle + 1
        found.append(low)
        prefixes.begin_at(low)
    return tuple(found)


class _Prefixes:
    """How long the text of the first tokens is. What is asked for lies at or behind `start`, which only moves on."""

    def __init__(self, ids: Sequence[int], text_of: Callable[[Sequence[int]], str]) -> None:
        self.start = 0
        self._ids = ids
        self._text_of = text_of
        self._known: dict[int, int] = {}
        self._before = (
            ""  # the text of the tokens from `_first` to `start`, whose whole prefix has `_passed` characters
        )
        self._first = self._passed = 0

    def length(self, token: int) -> int:
        """The number of characters of `ids[: token + 1]`."""
        if token not in self._known:
            window = self._text_of(self._ids[self._first : token + 1])
            if window.startswith(self._before):
                self._known[token] = self._passed + len(window) - len(self._before)
            else:
                self._known[token] = len(self._text_of(self._ids[: token + 1]))
        return self._known[token]

    def begin_at(self, token: int) -> None:
        """From now on nothing before `token` is asked for: it is read from a few tokens before it."""
        passed = self.length(token)
        first = max(0, token + 1 - _CONTEXT_TOKENS)
        before = self._text_of(self._ids[first : token + 1])
        if before and not before.endswith("\ufffd"):  # half a character reads otherwise once the rest has come
            self._first, self._before, self._passed = first, before, passed
        self.start = token
        self._known = {token: passed}
