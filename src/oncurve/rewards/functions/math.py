r"""The `math` reward: mathematical equality by math-verify, in a worker.

math-verify parses LaTeX into sympy and compares: `\frac{2}{4}` equals `1/2`, `x+1` equals `1+x`, `28\%` equals
`28 percent`. Its own timeouts use SIGALRM, raise a BaseException, and end as a silent "wrong". They are switched off;
the worker's deadline turns an endless comparison into a fault. The training process never imports math-verify.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from oncurve.rewards.accepts import Accepts
from oncurve.rewards.functions.answers import Number, boxed, final_answer, plain, text_after, whole_number
from oncurve.rewards.functions.characters import as_latex
from oncurve.rewards.settings import AnswerReward, Runner, WorkerSettings

_DELIMITED = re.compile(r"(?<!\\)\$(?![0-9])|\\[(\[]|\\boxed|\\fbox")
_PROSE = re.compile(r"[A-Za-z']+(?:[ ,]+[A-Za-z']+){2,}[.!]?")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}[ ,:]+[A-Za-z]{2,}|\n")  # two words or two lines: no formula
_GROUPED = re.compile(r"(?<==)[ ]?-?\\?[$€£]?[1-9][0-9]{0,2}(?:,[0-9]{3})++(?![0-9,])")  # no list: `x = 1,000`
_EMPHASIS = re.compile(r"(?:\A- )?(?<![\w)\]}])(\*\*|__|`)(?=\S)([^*_`\n]++)\1(?![\w(])")
_LABEL = re.compile(r"\A[A-Z]?[a-z]++:[ ]+(?=\S)")  # `Result: 5`
_NAMED = re.compile(r"^ ?[A-Za-z]++ ?=(?!=)")
_POWER = r"\^?[23²³]"
_UNIT = re.compile(
    r"(?<=[0-9])[ ](?!percent|pct)"
    rf"(?:[A-Za-z]{{2,}}(?:[ ][A-Za-z]+)*|[A-Za-z]{{1,4}}(?:{_POWER}|/[A-Za-z]{{1,4}}(?:{_POWER})?))$"
    rf"|(?<=\}})[ ](?!percent|pct)(?:[A-Za-z]{{2,}}(?:[ ][A-Za-z]+)*|[A-Za-z]{{2,4}}{_POWER}|[km]?m/[sh]{_POWER}?)$"
)

# A marked answer is a sentence where it holds a word that is no name in formulas: of four letters, or one of _SHORT.
_NAMES = (
    "sqrt|sinh|cosh|tanh|sech|csch|coth|arcsin|arccos|arctan|infinity|infty|alpha|beta|gamma|delta|theta|lambda|sigma"
    "|omega|sin|cos|tan|sec|csc|cot|log|ln|exp|pi|max|min|mod|gcd|lcm|or|percent|pct"
)
_SHORT = (
    "the|is|are|was|has|had|she|he|it|we|so|of|in|at|to|for|you|all|each|per|day|cm|km|mm|kg|lb|oz|ft|mph|ml|min"
    "|usd|eur|gbp|o['’]clock"
)
_BEFORE, _AFTER = r"(?<![\\A-Za-z'’{^_])", r"(?![A-Za-z(^_{}])"
_SENTENCE = re.compile(rf"{_BEFORE}(?!(?:{_NAMES})\b)(?:(?![A-Z]+\b)[A-Za-z]{{4,}}+|(?i:{_SHORT})\b){_AFTER}")
_WORD = re.compile(rf"{_BEFORE}(?!(?:{_NAMES})\b)[A-Za-z][A-Za-z'’]++{_AFTER}|\b[aAI](?= [A-Za-z])")
_QUOTATION = re.compile(r"[\"'`“„«‘]([^\"'`“„«‘”»’]*)[\"'`”“»’]")
_QUOTED = re.compile(r"\\(?:text|mathrm|mbox|textbf|textit)[ ]?\{([^{}]*)\}")


class Math(AnswerReward, WorkerSettings):
    r"""1 if the completion's answer equals that of the column mathematically, 0 if not.

    The completion's boxes are compared if it has any, else its marked answer (`answers.final_answer`), else the formula
    that math-verify finds. The column may hold `72`, `\frac{1}{2}`, `$x > 3$`, or a whole worked solution. None (does
    not apply) where it holds nothing mathematical.
    """

    def start(self, base: Path | None) -> Runner:
        """Run in workers."""
        return self.workers("oncurve.rewards.functions.math:Checker", {"answer": self.answer, "after": self.after})


class Checker:
    """The worker's side of `Math`; its constructor imports math-verify (and sympy)."""

    def __init__(self, answer: str = "answer", after: str | None = None) -> None:
        from math_verify import parse, verify

        logging.getLogger("math_verify").setLevel(
            logging.ERROR
        )  # it warns that its timeouts are off; the worker has one
        self.about = Accepts(needs=(("completion",), (answer,))).as_json()
        self._answer, self._after = answer, after
        self._parse: Callable[..., list[Any]] = parse
        self._verify: Callable[..., bool] = verify
        self._golds: dict[str, list[Any]] = {}
        self.check("1", "2")  # the grammars are read in the time of a start

    def __call__(self, item: Mapping[str, Any]) -> float | None:
        """Return 1.0, 0.0 or None for `{"completion": text, <answer>: text or number}`."""
        return self.check(item["completion"], str(item[self._answer]))

    def check(self, completion: str, answer: str) -> float | None:
        """Return 1.0 if `completion` gives the answer that `answer` gives, 0.0 if not, None if `answer` gives none."""
        gold = self._gold(answer)
        if not gold:
            return None
        text = text_after(completion, self._after)
        if text is None:
            return 0.0
        formula = _to_parse(text)
        given_number, gold_number = _number(formula), _number(_to_parse(answer))
        if given_number is not None and gold_number is not None and given_number.equals(gold_number):
            return 1.0  # as `numeric` does; math-verify accepts more, but not every percentage
        given = self._parse(formula, parsing_timeout=None)
        return float(self._verify(gold, given, allow_set_relation_comp=True, timeout_seconds=None))

    def _gold(self, answer: str) -> list[Any]:
        if answer not in self._golds:
            if len(self._golds) > 10_000:
                self._golds.clear()
            prose = _PROSE.fullmatch(answer.strip())
            self._golds[answer] = [] if prose else self._parse(_to_parse(answer), parsing_timeout=None)
        return self._golds[answer]


def _to_parse(text: str) -> str:
    """Return the input of math-verify, which looks for formulas in boxes and delimiters only: a bare one is put into a
    box.

    A text with boxes stays as it is (math-verify reads several). Of a marked answer the formula counts, without the
    words around it.
    """
    text = _EMPHASIS.sub(r"\2", as_latex(plain(text)).replace(r"\varnothing", r"\emptyset"))
    text = _GROUPED.sub(lambda grouped: grouped[0].replace(",", ""), text)
    if boxed(text) is not None:
        return text
    marked = final_answer(text)
    formula = _LABEL.sub("", text.strip(" \n*_`")) if marked is None else marked.strip()
    if _DELIMITED.search(formula) or (marked is None and _WORDS.search(_without_unit(formula))):
        return formula
    if marked is not None:
        formula = _of_sentence(formula)
    return rf"\boxed{{{_without_unit(formula)}}}"


def _number(formula: str) -> Number | None:
    """Return the number in the last box, alone or after a name and an equals sign: `5`, `x = 5`."""
    return whole_number(_NAMED.sub("", boxed(formula) or ""))


def _without_unit(formula: str) -> str:
    return _UNIT.sub("", formula)


def _of_sentence(marked: str) -> str:
    r"""Return the formula of a marked answer: all of it, or of a sentence the piece between the words.

    The last equation counts, else the first piece with a digit or a letter: `She has 5 apples` is `5`,
    `a total of 3 + 4 = 7 apples` is `3 + 4 = 7`, `5 apples cost 7 dollars` is `5`, as for `numeric`. Words alone are
    one text, not a product of letters: `\text{Monday}`.
    """
    marked = marked.strip(" ,;:!?*_").lstrip("≈~ ")
    quoted = _QUOTATION.fullmatch(marked)
    marked = quoted[1] if quoted else marked
    if not _SENTENCE.search(_QUOTED.sub(" ", marked)):
        return marked
    pieces = [_trimmed(piece) for piece in _WORD.split(_QUOTED.sub(r" \1 ", marked))]
    formulas = [piece for piece in pieces if any(map(str.isalnum, piece))]
    if not formulas:
        return rf"\text{{{marked.rstrip('.')}}}"
    equations = [piece for piece in formulas if piece.rpartition("=")[1:] != ("", piece)]
    return (equations or formulas)[-1 if equations else 0].lstrip("= ")


def _trimmed(piece: str) -> str:
    """Return the piece without the punctuation around it, and without a parenthesis whose other half is among the
    words.
    """
    trimmed = piece.strip(" ,;:!?*_≈~").removesuffix(".").removesuffix(" or").rstrip()
    return trimmed if trimmed.count("(") == trimmed.count(")") else trimmed.strip("() ")
