"""The final answer in a text, and the number in it. Text in, text or `Fraction` out; nothing is evaluated.

Every pattern takes time linear in the text: a repetition is possessive, or ends at a character that it cannot pass,
and runs of blanks become one blank before numbers are searched. The length of numbers is bounded. So these functions
run safely on model text.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_CURRENCIES = "€£¥¢₹₽₩"

_DIGITS = str.maketrans(
    {letter: f" {unicodedata.normalize('NFKC', letter).replace('⁄', '/')} " for letter in _VULGAR}
    | {chr(0xFF10 + digit): str(digit) for digit in range(10)}
    | {"⁄": "/", "％": "%"}
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
)
_SYMBOLS = str.maketrans({"∞": r"\infty ", "·": r"\cdot ", "⋅": r"\cdot "})
_ORNAMENTS = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff\ufe0f]")
_UNITS = re.compile(rf"[{_CURRENCIES}][ ]?(?=[-.0-9])|(?<=[0-9])[ ]?(?:[{_CURRENCIES}]|°[CF]?(?![A-Za-z]))")
_ROOT = re.compile(r"√[ ]?(?:([0-9]{1,200}(?:\.[0-9]{1,200})?|[A-Za-z](?![A-Za-z]))|(?=\())")
_POWER = re.compile(rf"(?:(?<=[0-9)\]}}])|(?<=[^A-Za-z][A-Za-z])|(?<=\A[A-Za-z]))[{_SUPERSCRIPTS}]{{1,9}}")


def digits_plain(text: str) -> str:
    """Return the text with digits of other forms, and fractions of one character, in ASCII: `2½` is `2 1/2`, `９` is
    `9`.
    """
    return text if text.isascii() else text.translate(_DIGITS)


def as_latex(text: str) -> str:
    r"""Return the text with signs as LaTeX's commands, and without currencies and degrees at numbers: `x²` is `x^2`,
    `√2` is `\sqrt{2}`, `45 €` and `45°` are `45`. Ornaments such as check marks are left out.
    """
    if text.isascii():
        return text
    text = _UNITS.sub("", _ORNAMENTS.sub("", text)).translate(_SYMBOLS)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1]}}}" if root[1] else r"\sqrt", text)
    return _POWER.sub(_exponent, text)


def _exponent(power: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", power[0])
    return f"^{digits}" if len(digits) == 1 else f"^{{{digits}}}"


LONGEST_NUMBER = 200  # characters; a longer one is not an answer, and int() refuses beyond 4,300 digits

_BRACES = re.compile(
    r"(?P<box>\\(?:boxed|fbox)[ \t]*+\{)|\\(?:boxed|fbox)[ \t]++(?P<bare>[^\s$\\{}]++)|\\.|[{}]", re.DOTALL
)
_HASHES = re.compile(r"#{4,}+[ \t]*+:?[ \t]*+")
_SAID = re.compile(
    r"(?:^[ \t*_]*+A:|\b(?:[Aa]nswer|ANSWER)(?:[*_ \t]*+[:=]|[ \t]++(?:is|IS)\b[ \t]*+:?))[ \t*_]*+", re.MULTILINE
)
_LINE = re.compile(r".*")
_LINE_END = re.compile(r"$", re.MULTILINE)
_VERDICT = re.compile(
    r"(?:(?:not|also|indeed|thus)[ ])?(?:in)?(?:correct|right|wrong|valid|reasonable|consistent|unique|verified)\b"
)
_OPENING_TAG = re.compile(r"<([A-Za-z_][\w-]*)>")
_NEXT_LINE = re.compile(r"\s*+([^\n]*)")

_BLANKS = re.compile("[ \t\u00a0\u2009\u202f]+")
_SPACING = re.compile(
    r"\{,\}|(?<=[0-9]),\\![ ]?(?=[0-9]{3}(?![0-9]))|\\[,!;:]|(?<=[0-9])(?:\\ |~)(?=[0-9]{3}(?![0-9]))"
)
_GROUPED = re.compile(r"(?<![0-9.,/])[1-9][0-9]{0,2}([ '’_])[0-9]{3}(?![0-9])(?:\1[0-9]{3}(?![0-9]))*+")
_MIXED = re.compile(r"(?<![0-9./,])([0-9]{1,9}+) ([0-9]{1,4}+)/([0-9]{1,4}+)(?![0-9./])")
_NEGATIVE = re.compile(r"(?<![0-9)] )\b(?:[Mm]inus|[Nn]egative) (?=\\?[$€£]?[.0-9])")
_SCALE = re.compile(r"(?<=[0-9])[ ]?(thousand|million|billion|trillion)\b")
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}

_EQUALS = re.compile(r"\b(?:equals|is equal to)\b")

_ANGLES = re.compile(r"</?[A-Za-z][^<>\n]{0,60}+>|<{1,2}(?! )([^<>\n]{1,60}+)>{1,2}")  # tags; `<<3+4=7>>`
_ARROW = re.compile(r"[-=]>")
# Before a number: it is denied, or a bound. After it: it is a bound. Between two: alternatives, a range, a list, or a
# term that is not worked out.
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot)|n['’]t)(?:[ ](?:be|equal|equals|to|exactly|really|simply|just|a|an))*+[ {}]*+\Z"
    r"|(?:[<>≤≥≠]=?|!=|\\(?:[lg]t|[lg]eq?q?(?:slant)?|neq?)|\b(?:more|less|greater|fewer|larger|smaller|other)[ ]than)"
    r"[ {}$]*+\Z"
)
_BOUND = re.compile(r"[ $]*+(?:[<>≤≥≠]|!=|\\(?:[lg]t|[lg]eq?q?(?:slant)?|neq?)(?![A-Za-z]))")
_JOINED = re.compile(
    r"[ )$}]*+(?:,?[ ]?\b(?:or|and|to|plus|minus|times)\b(?:[ ](?:maybe|perhaps|possibly))?|[,;][ ]?(?:or|and)?"
    r"|[-−–—~&|+*×·÷/±]|\\(?:times|cdot|div|pm|to|lor|quad)|\\text[ ]?\{[ ]?(?:or|and|to)[ ]?\})"
    r"[ ($]*+(?:[A-Za-z]\w{0,9}+[ ]?=[ ]?)?[ ($]*+(?:\\?[$€£][ ]?)?"
)
_REACH = 40  # characters around a number in which these are looked for

_TIMES_TEN = re.compile(r"(?<=[0-9])[ ]?(?:\\times|\\cdot|[×·*x])[ ]?10\^(?:\{(-?[0-9]{1,3})\}|(-?[0-9]{1,3}))")
_POWER_OF_TEN = re.compile(r"(?<![\w.^])10\^(?:\{(-?[0-9]{1,3})\}|(-?[0-9]{1,3}))(?![0-9])")
_FRACTION = re.compile(
    r"(-?)[ ]?\\[dtc]?frac[ ]?(?:\{[ ]?(-?[0-9]++)[ ]?\}|([0-9]))[ ]?(?:\{[ ]?([0-9]++)[ ]?\}|([0-9]))"
)

# Digits that are no number: versions, addresses and dates, hours, hexadecimal digits, powers and roots, and the
# exponent or index of a letter.
_NO_NUMBER = r"""
    (?<![\w.])[vV][0-9]++(?:\.[0-9]++)*+
  | 0[xX][0-9a-fA-F]++
  | [0-9]++(?:\.[0-9]++){2,}+
  | [0-9]++(?:/[0-9]++){2,}+
  | [0-9]++(?:\.[0-9]++)?+/[0-9]*+\.[0-9]++
  | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?![0-9])
  | [0-9]{1,2}-[0-9]{1,2}-[0-9]{4}(?![0-9])
  | [0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?+(?![0-9])
  | [0-9]++(?:\.[0-9]++)?+[ ]?(?:\^(?!\{?(?:\\circ|°))(?:\{[^{}]*+\}|-?[0-9]++)?|[⁰¹²³⁴-⁹]|\\pi\b|π)
  | (?:[0-9]++(?:\.[0-9]++)?+[ ]?)?(?:\\sqrt(?:\[[^\[\]]*+\])?[ ]?(?:\{[^{}]*+\}|[0-9])|√[ ]?[0-9.]++)
  | \\[dtc]?frac[ ]?\{[^{}]*+\}[ ]?\{[^{}]*+\}
  | (?<=[A-Za-z)])[\^_](?:\{[^{}]*+\}|-?[0-9]++)
"""
_NUMBER = re.compile(
    rf"""
    (?P<no>{_NO_NUMBER})
  | (?P<sign>(?<![\w)\]}}])[-−–])?(?:\\?[$€£][ ]?)?(?P<minus>(?<=[$€£ ])[-−–])?(?!{_NO_NUMBER})
    (?:
      (?P<whole>[0-9]{{1,3}}(?:,[0-9]{{3}})++(?![0-9])|[0-9]++)(?P<part>\.[0-9]++)?+
      (?:
        (?P<exponent>[eE][-+]?[0-9]{{1,3}}(?![0-9]))
      | [ ](?P<top>[0-9]{{1,9}}+)/(?P<bottom>[0-9]{{1,9}}+)(?![0-9./])
      )?
    | (?<!\w)(?P<bare>\.[0-9]++)(?P<power>[eE][-+]?[0-9]{{1,3}}(?![0-9]))?
    )
    (?P<over>(?<=[0-9])/[0-9]++)?
    (?P<percent>[ ]?(?:\\?%|percent|pct))?
    """,
    re.VERBOSE,
)


class Number(NamedTuple):
    """A number in a text: its `value` without the percent sign, and whether there is one (`percent`)."""

    value: Fraction
    percent: bool = False

    def equals(self, other: Number) -> bool:
        """Return the same value; where one of them has a percent sign, also that one over 100: 50 % is 50, and 0.5."""
        mine = self.value / 100 if self.percent and not other.percent else self.value
        theirs = other.value / 100 if other.percent and not self.percent else other.value
        return self.value == other.value or mine == theirs


def text_after(text: str, marker: str | None) -> str | None:
    """Return the text after the last `marker` (such as `</think>`); without a marker all of it; None if it never
    occurs.

    After an opening tag (`<answer>`) only the text up to its closing tag counts, if there is one.
    """
    if marker is None:
        return text
    _, found, rest = text.rpartition(marker)
    if not found:
        return None
    tag = _OPENING_TAG.fullmatch(marker)
    return rest.partition(f"</{tag[1]}>")[0] if tag else rest


def boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` or `\fbox{...}`, braces balanced; `\boxed 7` is `7`. None: there is
    none.

    A box that is never closed (a truncated completion) does not count; the one before it does. Of nested boxes the
    innermost counts.
    """
    return _last_box(text)[1]


def _last_box(text: str) -> tuple[int, str | None]:
    """Return the start of the last closed box's content, and the content; (-1, None) without one. One pass."""
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
    r"""Return the text that is marked as the final answer, stripped; None when nothing marks one.

    The last of `#### ...` (to the end of the line) and `\boxed{...}`, whichever comes last; without those the last
    of `A: ...` at the beginning of a line, `Answer: ...`, `answer is ...`, where an empty rest of the line means the
    next line that is not empty. So it is within a line, too: `The answer is 4. Wait, the answer is 5` is `5`. A mark
    that only confirms another (`The answer is 5. This answer is correct`), or `####` at the end of a line, does not
    count next to others. A full stop at its end is not part of it.
    """
    start, box = _last_box(text)
    hashes = _preferred(_HASHES, text, _LINE_END)
    if box is not None and (not hashes or hashes.start() < start):
        return box.strip()
    said = hashes or _preferred(_SAID, text, _VERDICT)
    if not said:
        return None
    answer = _LINE.match(text, said.end())[0].partition("####")[0].strip()  # type: ignore[index]
    if not answer and not hashes:
        following = _NEXT_LINE.match(text, said.end())
        answer = following[1].strip().lstrip("*_ \t") if following else ""
    return answer.removesuffix(".").rstrip("*_ \t")


def _preferred(mark: re.Pattern[str], text: str, unless: re.Pattern[str]) -> re.Match[str] | None:
    """Return the last `mark` in the text that `unless` does not follow; where it follows all of them, the last one."""
    last = preferred = None
    for last in mark.finditer(text):
        if not unless.match(text, last.end()):
            preferred = last
    return preferred or last


def plain(text: str) -> str:
    r"""Return the text with its numbers written one way, as LaTeX has them.

    `1 000`, `1\,000` and `1'000` are `1000` (digits grouped by three, by the same sign throughout), `5 million` is
    `5 \times 10^{6}`, `2 1/2` and `2½` are `2\frac{1}{2}`, `minus 5` is `-5`, `x equals 5` is `x = 5`. Blanks of all
    kinds become one blank.
    """
    text = _EQUALS.sub("=", _SPACING.sub("", _BLANKS.sub(" ", digits_plain(text))))
    text = _GROUPED.sub(lambda grouped: grouped[0].replace(grouped[1], ""), text)
    text = _MIXED.sub(_as_latex, _NEGATIVE.sub("-", text))
    return _SCALE.sub(lambda scale: rf" \times 10^{{{_SCALES[scale[1]]}}}", text)


def _as_latex(mixed: re.Match[str]) -> str:
    whole, top, bottom = mixed.groups()
    return rf"{whole}\frac{{{top}}}{{{bottom}}}" if int(top) < int(bottom) else mixed[0]


def number_in(text: str, last: bool = False) -> Number | None:
    r"""Return the first (or `last`) number that a text states, exactly; None when it states none.

    Read: sign, `$1,234.50`, `.5`, `3/4`, `2 1/2`, `\frac{3}{4}`, `1e3`, `3 \times 10^5`, `1 000`, `5 million`.
    Currency, percent signs and units are no part of the value: `42%` is 42. After an equals sign the right side counts:
    `3 + 4 = 7` is 7 (only when the first number is asked for).
    Not stated: what is denied or a bound (`not 5`, `> 5`, `5 < x`), which is passed over; and a number that is joined
    to another one (`5 or 6`, `5-6`, `5 to 6`, `5, 6`, `5 + 6`), unless the two are equal (`1/2 or 0.5`).
    Not read: versions, addresses, dates and hours (`1.2.3`, `15/01/2024`, `10:30`), powers and roots, a zero
    denominator, more than 200 characters.
    """
    text = _ARROW.sub("=", _ANGLES.sub(r" \1 ", _numbers_plain(text)))
    found = [match for match in _NUMBER.finditer(text) if match["no"] is None]
    side = 0 if last else text.rfind("=") + 1
    stated = [n for n, match in enumerate(found) if match.start() >= side and not _is_bound(text, match)]
    if not stated:
        return None
    chosen = stated[-1 if last else 0]
    value = _value(found[chosen])
    for one, other in ((chosen - 1, chosen), (chosen, chosen + 1)):
        if one >= 0 and other < len(found) and _are_joined(text, found[one], found[other]):
            neighbour = _value(found[other if one == chosen else one])
            if value is None or neighbour is None or not value.equals(neighbour):
                return None
    return value


def _is_bound(text: str, number: re.Match[str]) -> bool:
    """Return whether a number in the text is denied, or a bound of an inequality."""
    before = text[max(0, number.start() - _REACH) : number.start()]
    return bool(_DENIED.search(before) or _BOUND.match(text, number.end()))


def _are_joined(text: str, one: re.Match[str], other: re.Match[str]) -> bool:
    """Return whether two numbers of the text are alternatives, the ends of a range, members of a list, or terms."""
    between = text[one.end() : other.start()]
    return len(between) <= _REACH and bool(_JOINED.fullmatch(between) or (other["sign"] and between == " "))


def whole_number(text: str) -> Number | None:
    """Return the number that is the whole text; None where the text is anything else."""
    match = _NUMBER.fullmatch(_numbers_plain(text).strip())
    return _value(match) if match and match["no"] is None else None


def _numbers_plain(text: str) -> str:
    """Return the text with its powers of ten as exponents (`3e5`) and its fractions of digits as `3/4`."""
    text = _TIMES_TEN.sub(lambda power: f"e{power[1] or power[2]}", plain(text))
    text = _POWER_OF_TEN.sub(lambda power: f"1e{power[1] or power[2]}", text)
    text = _FRACTION.sub(lambda f: f" {f[1]}{f[2] or f[3]}/{f[4] or f[5]} ".replace("--", ""), text)
    return _BLANKS.sub(" ", text)


def _value(match: re.Match[str]) -> Number | None:
    if len(match[0]) > LONGEST_NUMBER:
        return None
    digits = (match["whole"] or "0").replace(",", "") + (match["part"] or match["bare"] or "")
    value = Fraction(digits + (match["exponent"] or match["power"] or ""))
    if match["top"] and int(match["top"]) < int(match["bottom"]):
        value += Fraction(int(match["top"]), int(match["bottom"]))
    if match["over"]:
        divisor = int(match["over"][1:])
        if divisor == 0:
            return None
        value /= divisor
    return Number(-value if match["sign"] or match["minus"] else value, match["percent"] is not None)


def marked_number(text: str, unmarked: bool = True) -> Number | None:
    """Return the first number in the text's `final_answer`; where nothing marks one the last number of all
    (`unmarked`).
    """
    marked = final_answer(text)
    if marked is not None:
        return number_in(marked)
    return number_in(text, last=True) if unmarked else None
