"""Where a text says its final answer, and which number that is. Text in, text or `Fraction` out; nothing is evaluated.

All patterns take time linear in the text, and numbers are bounded in length, so these run safely on model text.
"""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["boxed", "final_answer", "number_in", "numeric_answer", "text_after"]

LONGEST_NUMBER = 200  # characters; a longer one is not an answer, and int() refuses beyond 4,300 digits

_BRACES = re.compile(
    r"(?P<box>\\(?:boxed|fbox)[ \t]*\{)|\\(?:boxed|fbox)[ \t]+(?P<bare>[^\s$\\{}]+)|\\.|[{}]", re.DOTALL
)
_HASHES = re.compile(r"####[ \t]*:?[ \t]*(.*)")
_SAID = re.compile(r"(?:^[ \t*_]*A:|\b[Aa]nswer(?:[*_ \t]*[:=]|[ \t]+is\b[ \t]*:?))[ \t*_]*(.*)", re.MULTILINE)
_NUMBER = re.compile(
    r"(?=[-−\\$€£.0-9])(?P<sign>(?<![\w)\]}])[-−])?(?:\\?[$€£])?(?P<minus>(?<=[$€£])[-−])?"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)?(?P<part>\.[0-9]+)?"
    r"(?P<exponent>(?<=[0-9])[eE][-+]?[0-9]{1,3}(?![0-9]))?(?P<over>(?<=[0-9])/[0-9]+(?!\.?[0-9]))?"
)
_FRACTION = re.compile(r"(-?)[ \t]*\\[dtc]?frac[ \t]*\{[ \t]*(-?[0-9]+)[ \t]*\}[ \t]*\{[ \t]*([0-9]+)[ \t]*\}")
_SPACING = re.compile(r"\{,\}|\\[,!;:]|(?<=[0-9])\\ (?=[0-9]{3}(?![0-9]))")


def text_after(text: str, marker: str | None) -> str | None:
    """What follows the last `marker` (such as `</think>`); the whole text without a marker; None if it never occurs."""
    if marker is None:
        return text
    _, found, rest = text.rpartition(marker)
    return rest if found else None


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` or `\fbox{...}`, braces balanced; `\boxed 7` is `7`. None: there is none.

    A box that is never closed (a truncated completion) does not count; the one before it does. Of nested boxes the
    innermost counts.
    """
    return _last_box(text)[1]


def _last_box(text: str) -> tuple[int, str | None]:
    """Where the content of the last closed box starts, and the content; (-1, None) without one. One pass."""
    last: tuple[int, str | None] = (-1, None)
    opened: list[int | None] = []  # for each open brace the start of its box's content; None: not a box
    for token in _BRACES.finditer(text):
        if token["box"]:
            opened.append(token.end())
        elif token["bare"]:
            last = max(last, (token.start("bare"), token["bare"]))
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start is not None and start > last[0]:
                last = (start, text[start : token.start()])
    return last


def final_answer(text: str) -> str | None:
    r"""The text that is marked as the final answer, stripped; None when nothing marks one.

    The last of `#### ...` (to the end of the line) and `\boxed{...}`, whichever comes last; without those the last
    of `A: ...` at the beginning of a line, `Answer: ...`, `answer is ...`. A full stop at its end is not part of it.
    """
    start, box = _last_box(text)
    hashes = list(_HASHES.finditer(text))
    if box is not None and (not hashes or hashes[-1].start() < start):
        return box.strip()
    said = hashes or list(_SAID.finditer(text))
    if not said:
        return None
    answer = said[-1][1].strip()
    return (answer[:-1] if answer.endswith(".") else answer).rstrip("*_ \t")


def number_in(text: str, last: bool = False) -> Fraction | None:
    r"""The first (or `last`) number in a text, exactly; None when there is none, or it has a zero denominator.

    Read: sign, `$1,234.50`, `.5`, `3/4`, `\frac{3}{4}`, `1e3`, `1{,}000`. Currency, percent signs and units are no part
    of the number: `42%` is 42. A comma that does not group three digits ends the number: the first one in `1,22` is 1.
    After an equals sign the right side counts: `3 + 4 = 7` is 7 (only when the first number is asked for).
    """
    text = _FRACTION.sub(lambda f: f" {f[1]}{f[2]}/{f[3]} ".replace("--", ""), _SPACING.sub("", text))
    if not last:
        text = text.rpartition("=")[2]
    found = None
    for match in _NUMBER.finditer(text):
        if match["whole"] or match["part"]:
            found = match
            if not last:
                break
    return _value(found) if found else None


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > LONGEST_NUMBER:
        return None
    digits = (match["whole"] or "0").replace(",", "") + (match["part"] or "") + (match["exponent"] or "")
    value = Fraction(digits)
    if match["over"]:
        divisor = int(match["over"][1:])
        if divisor == 0:
            return None
        value /= divisor
    return -value if match["sign"] or match["minus"] else value


def numeric_answer(text: str, unmarked: bool = True) -> Fraction | None:
    """The number a text gives as its answer: in what `final_answer` finds, else (`unmarked`) the last one of all."""
    marked = final_answer(text)
    if marked is not None:
        return number_in(marked)
    return number_in(text, last=True) if unmarked else None
