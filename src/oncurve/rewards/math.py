r"""The `math` reward: mathematical equality by math-verify, in a worker.

math-verify parses LaTeX into sympy and compares: `\frac{2}{4}` equals `1/2`, `x+1` equals `1+x`, `28\%` equals
`28 percent`. Its own timeouts use SIGALRM, raise a BaseException, and become a silent "wrong" when they strike; they
are switched off, and the worker's deadline makes a fault of what takes too long. Nothing of it is imported in the
training process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from oncurve.rewards.answers import boxed, final_answer, text_after
from oncurve.rewards.settings import Accepts, Runner, WorkerSettings

__all__ = ["Checker", "Math"]

_DELIMITED = re.compile(r"(?<!\\)\$|\\[(\[]|\\boxed|\\fbox")
_PROSE = re.compile(r"[A-Za-z']+(?:[ ,]+[A-Za-z']+){2,}[.!]?")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}[ ,:]+[A-Za-z]{2,}|\n")  # two words or two lines: no formula
_UNIT = re.compile(r"(?<=[0-9])[ ]+(?!percent|pct)[A-Za-z]{2,}(?:[ ]+[A-Za-z]+)*$")


class Math(WorkerSettings):
    r"""1 if the completion's answer equals that of the column mathematically, 0 if not.

    answer   the column that holds the right answer: `72`, `\frac{1}{2}`, `$x > 3$`, or a whole worked solution
    after    only what follows the last occurrence of this counts (`</think>`); a completion without it gets 0

    What is compared: the boxes of the completion if it has any, else what `answers.final_answer` finds, else what
    math-verify makes out. None (does not apply) where the column holds nothing mathematical.
    """

    judges_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = True
    answer: str = "answer"
    after: str | None = None

    def start(self, base: Path | None) -> Runner:
        """Runs in workers."""
        return self.workers("oncurve.rewards.math:Checker", {"answer": self.answer, "after": self.after})


class Checker:
    """The worker's side of `Math`; imports math-verify (and sympy) when it is made."""

    def __init__(self, answer: str = "answer", after: str | None = None) -> None:
        from math_verify import parse, verify

        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off: ours are on
        self.about = Accepts(needs=(("completion",), (answer,))).model_dump()
        self._answer, self._after = answer, after
        self._parse: Callable[..., list[Any]] = parse
        self._verify: Callable[..., bool] = verify
        self._golds: dict[str, list[Any]] = {}

    def __call__(self, item: Mapping[str, Any]) -> float | None:
        """1.0, 0.0 or None for `{"completion": text, <answer>: text or number}`."""
        return self.check(item["completion"], str(item[self._answer]))

    def check(self, completion: str, answer: str) -> float | None:
        """1.0 if `completion` gives the answer that `answer` gives, 0.0 if not, None if `answer` gives none."""
        gold = self._gold(answer)
        if not gold:
            return None
        text = text_after(completion, self._after)
        if text is None:
            return 0.0
        given = self._parse(_to_parse(text), parsing_timeout=None)
        return float(self._verify(gold, given, timeout_seconds=None))

    def _gold(self, answer: str) -> list[Any]:
        if answer not in self._golds:
            if len(self._golds) > 10_000:
                self._golds.clear()
            prose = _PROSE.fullmatch(answer.strip())
            self._golds[answer] = [] if prose else self._parse(_to_parse(answer), parsing_timeout=None)
        return self._golds[answer]


def _to_parse(text: str) -> str:
    """What math-verify is given: it looks for formulas in boxes and delimiters only, so a bare one is put into a box.

    A text with boxes is left as it is (math-verify reads several); else its marked answer counts, if it has one.
    """
    if boxed(text) is not None:
        return text
    marked = final_answer(text)
    formula = _UNIT.sub("", (text if marked is None else marked).strip())
    is_bare = not _DELIMITED.search(formula) and (marked is not None or not _WORDS.search(formula))
    return rf"\boxed{{{formula}}}" if is_bare else formula
