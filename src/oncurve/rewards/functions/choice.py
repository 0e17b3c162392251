r"""The `choice` reward: the letter of a multiple-choice answer, compared with that of a column.

Covered: `The answer is (B)`, `Answer: B`, `\boxed{B}`, `#### B`, `B. Paris`, an option's text in place of its letter,
and letters, numbers or texts in the answer column. All patterns take time linear in the text.
Not covered: several right letters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from oncurve.rewards.functions.answers import final_answer
from oncurve.rewards.functions.verify import Checked

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)[ ]?\{([^{}]*)\}")
_FIRST = re.compile(r"(?i:(?:option|choice|letter)[ \t]++)?\(?[ ]?([A-Za-z]|[0-9]{1,2})[ ]?(?![\w'’+/^=-]|\.[0-9])")
_ANOTHER = re.compile(r"[ )\].:]*+(?:,|/|&|\bor\b|\band\b)[ (]*+(?!I )(?:[A-Z]|[0-9]{1,2})(?![\w'’])")
_ARTICLE = re.compile(r"[ai][ \t]++[A-Za-z]")
_ALONE = re.compile(r"\(?[ ]?(?:[A-Za-z]|[0-9]{1,2})[ ]?(?:[).:](?:[ \t*_].*+)?)?")
_MENTIONED = re.compile(
    r"\([ ]?([A-Z]|[0-9]{1,2})[ ]?\)|\b(?i:option|choice)(?:[ \t]++is)?+[ \t:]++[(*]*+([A-Z]|[0-9]{1,2})(?!\w)"
)
_ORNAMENTS = " \t*_$`\"'“”\\()[]{}"


class Choice(Checked):
    r"""1 if the completion chooses the option of the answer column, 0 if it chooses another one, several or none.

    The choice is what the marked answer (`answers.final_answer`) begins with: `The answer is (B)`, `Answer: B. Paris`,
    `\boxed{\text{B}}`; or the text of an option. Where nothing marks an answer, it is a completion of one line that is
    a letter, alone or with a sign (`B`, `(B) Paris`, `B. Paris`), else the last mention of `(B)` or `option B`. None
    (does not apply) where the answer column is empty. Linear time, in this process.
    """

    options: str | None = None
    """The column with the options: a list of texts, whose letters are A, B, ...; or `{"label": [...], "text": [...]}`.
    With it an answer may be an option's text, and a whole number in the answer column is an index that begins with 0.
    Without it: letters A to Z, or numbers."""

    unmarked: bool = True
    """Whether the last mention counts where nothing marks an answer."""

    def complaint(self, row: Mapping[str, Any]) -> str | None:
        """Return why the row's options are none, or its answer is none of them, or None if the reward can use the
        row.
        """
        given = row.get(self.options) if self.options is not None else None
        if self.options in row and _options(given) is None:
            return (
                f"column {self.options!r} holds no options, but {given!r:.60}; a list of at most 26 texts, or "
                '{"label": [...], "text": [...]} with as many of each'
            )
        said = super().complaint(row)
        answer = row.get(self.answer, "")
        if said is None and answer != "" and _right(answer, _options(given)) is None:
            among = f"none of the options in {self.options!r}" if self.options is not None else "no letter of an option"
            return f"column {self.answer!r} holds {answer!r:.60}, which is {among}"
        return said

    @property
    def reads(self) -> tuple[str, ...]:
        """The completion, the answer and the options."""
        return (*super().reads, *([] if self.options is None else [self.options]))

    def __call__(self, completion: str, answer: Any, options: Any = None) -> float | None:
        """Return 1.0, 0.0 or None as the class says; `options` is what its column holds. Raises ValueError: no such
        answer.
        """
        if answer is None or answer == "":
            return None
        labelled = _options(options)
        right = _right(answer, labelled)
        if right is None:
            raise ValueError(f"the answer {answer!r:.60} is none of the options")
        return float(chosen(completion, labelled, self.unmarked) == right)


def chosen(text: str, options: Mapping[str, str] | None = None, unmarked: bool = True) -> str | None:
    """Return the label of the option that a text chooses; None where it chooses none, or several.

    options    the texts of the options by their labels; None: any letter or number of at most two digits is a label
    unmarked   whether the last mention counts where nothing marks an answer
    """
    marked = final_answer(text)
    if marked is not None:
        return _label(marked, options)
    whole = text.strip(_ORNAMENTS.replace("(", "") + "\n")
    if options is not None and (by_text := _by_text(whole, options)) is not None:
        return by_text
    mentions = [found[1] or found[2] for found in _MENTIONED.finditer(text)]
    known = [label for label in mentions if options is None or label in options]
    if len(set(known)) < 2 and _ALONE.fullmatch(whole):
        return _label(whole, options)
    return known[-1] if known and unmarked else None


def _label(marked: str, options: Mapping[str, str] | None) -> str | None:
    """Return the label that a marked answer begins with, or whose option it is."""
    plain = _WRAPPED.sub(r"\1", marked).lstrip(_ORNAMENTS.replace("(", ""))
    if options is not None and (by_text := _by_text(plain, options)) is not None:
        return by_text
    first = _FIRST.match(plain)
    if first is None or _ARTICLE.match(plain) or _ANOTHER.match(plain, first.end(1)):
        return None
    label = first[1].upper()
    return label if options is None or label in options else None


def _by_text(text: str, options: Mapping[str, str]) -> str | None:
    """Return the label of the only option with this text; None: there is none, or there are several."""
    found = [label for label, option in options.items() if _same(option) == _same(text)]
    return found[0] if len(found) == 1 else None


def _same(text: str) -> str:
    return " ".join(text.split()).strip(_ORNAMENTS + ".").casefold()


def _options(given: Any) -> dict[str, str] | None:
    """Return the options by their labels; None: `given` holds none."""
    if isinstance(given, Mapping):
        labels, texts = _listed(given.get("label")), _listed(given.get("text"))
    else:
        texts = _listed(given)
        labels = list(ascii_uppercase[: len(texts)])
    if not texts or len(labels) != len(texts):
        return None
    return {str(label).strip().upper(): str(text) for label, text in zip(labels, texts, strict=True)}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else []


def _right(answer: Any, options: Mapping[str, str] | None) -> str | None:
    """Return the label of the right option, from the answer column; None: it names none."""
    label = str(answer).strip(_ORNAMENTS + ".:").upper()
    if options is None:
        return label if re.fullmatch(r"[A-Z]|[0-9]{1,2}", label) else _label(str(answer), None)
    if isinstance(answer, int) and not isinstance(answer, bool):
        return list(options)[answer] if 0 <= answer < len(options) else None
    return label if label in options else _by_text(str(answer), options) or _label(str(answer), options)
