"""Characters of answers for which LaTeX has commands, or no use. Text in, text out, in linear time."""

from __future__ import annotations

import re
import unicodedata

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
