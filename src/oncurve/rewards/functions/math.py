r"""The `math` reward: mathematical equality by math-verify, in a worker.

math-verify parses LaTeX into sympy and compares: `\frac{2}{4}` equals `1/2`, `x+1` equals `1+x`, `28\%` equals
`28 percent`. Its own timeouts use SIGALRM, raise a BaseException, and end as a silent "wrong". They are switched off;
the worker's deadline turns an endless comparison into a fault. The training process never imports math-verify.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from oncurve.base.errors import ConfigError
from oncurve.components import Impossible
from oncurve.rewards.functions.answers import Number, as_latex, boxed, final_answer, plain, text_after, whole_number
from oncurve.rewards.functions.callables import Accepts
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


def cosine_scaled(length: int, max_length: int, shortest: float, longest: float) -> float:
    """Return half a cosine from `shortest` at length 0 to `longest` at `max_length`, and `longest` beyond.

        longest + (shortest - longest) / 2 · (1 + cos(π · min(length / max_length, 1)))

    Example: halfway, of 0 and 1, 0.5.
    """
    progress = min(length / max_length, 1.0)
    return longest + 0.5 * (shortest - longest) * (1.0 + math.cos(math.pi * progress))


class Cosine(Math):
    """By the completion's length: the reward of a correct answer falls with it, that of a wrong one rises.

    With L = `max_length` and |o| the completion's tokens, along half a cosine from |o| = 0 to L (`cosine_scaled`):

        correct    max_value_correct → min_value_correct
        wrong      min_value_wrong   → max_value_wrong

    Correct is what the kind `math` gives 1; None (does not apply) where the answer column holds nothing mathematical.
    The value 1 does not mean right, so it is never the verifier: add `kind = "math"` with weight 0 for accuracies.
    Source: Yeo et al., arXiv:2502.03373, appendix C.1, as TRL's `get_cosine_scaled_reward`, with its names. Example: at
    half of L, with the defaults, a correct completion has 0.75 and a wrong one -0.75.
    """

    verifies: ClassVar[bool | None] = False

    max_length: int | None = Field(default=None, gt=0, le=10**7)
    """The length L in tokens at which both curves end; none: `rollout.max_new_tokens`."""

    min_value_wrong: float = -1.0
    """The value of a wrong completion of length 0."""

    max_value_wrong: float = -0.5
    """The value of a wrong completion of length L and more."""

    min_value_correct: float = 0.5
    """The value of a correct completion of length L and more."""

    max_value_correct: float = 1.0
    """The value of a correct completion of length 0."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda reward: reward.min_value_wrong > reward.max_value_wrong,
            "min_value_wrong: it is the value of the shortest wrong completion, and above max_value_wrong, that of the "
            "longest; lower it",
        ),
        Impossible(
            lambda reward: reward.min_value_correct > reward.max_value_correct,
            "min_value_correct: it is the value of the longest correct completion, and above max_value_correct, that "
            "of the shortest; lower it",
        ),
        Impossible(
            lambda reward: reward.max_value_wrong >= reward.min_value_correct,
            "max_value_wrong: a long wrong completion would have as much as a long correct one; set it below "
            "min_value_correct",
        ),
    )

    @property
    def below_zero(self) -> bool:
        """Return whether the values of wrong completions are below 0."""
        return self.min_value_wrong < 0

    def for_lengths(self, longest: int) -> Cosine:
        """With `longest` in the place of a `max_length` that was left out."""
        return self.model_copy(update={"max_length": self.max_length or longest})

    def start(self, base: Path | None) -> Runner:
        """Run in workers, as `math` does. Raises ConfigError without a `max_length`."""
        if self.max_length is None:
            raise ConfigError("max_length is missing, the length in tokens at which both curves end")
        curves = [(self.min_value_wrong, self.max_value_wrong), (self.max_value_correct, self.min_value_correct)]
        settings = {"answer": self.answer, "after": self.after, "max_length": self.max_length, "curves": curves}
        return self.workers(f"{__name__}:ScaledChecker", settings)


class ScaledChecker(Checker):
    """The worker's side of `Cosine`.

    curves   of wrong completions and of correct ones: the values at length 0 and at `max_length`
    """

    def __init__(self, answer: str, after: str | None, max_length: int, curves: Sequence[Sequence[float]]) -> None:
        super().__init__(answer, after)
        self.about = Accepts(needs=(("completion",), (answer,), ("completion_ids",))).as_json()
        self._max_length, self._curves = max_length, curves

    def __call__(self, item: Mapping[str, Any]) -> float | None:
        """Return the value of `{"completion": text, <answer>: text or number, "completion_ids": tokens}`, or None."""
        right = super().__call__(item)
        if right is None:
            return None
        return cosine_scaled(len(item["completion_ids"]), self._max_length, *self._curves[int(right)])
