r"""Verifiable rewards: `exact`, `numeric`, `regex`, the built-in `task`, an environment's own, reasoning-gym's, and
`choice`, which compares the letter of a multiple-choice answer with that of a column.

All patterns of `choice` take time linear in the text. Covered: `The answer is (B)`, `Answer: B`, `\boxed{B}`,
`#### B`, `B. Paris`, an option's text in place of its letter, and letters, numbers or texts in the answer column. Not
covered: several right letters.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from oncurve.rewards.functions.answers import final_answer, marked_number, text_after
from oncurve.rewards.functions.callables import MATCHER, Accepts
from oncurve.rewards.settings import AnswerReward, Local, Runner, WorkerSettings
from oncurve.tasks import check_steps, is_correct, read_question, reasoning_dataset


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiled)]
"""A setting that is a regular expression of Python's `re`."""


class Checked(AnswerReward, Local):
    """A comparison with a column: 1 for a right completion, 0 for a wrong one, None where the column has no answer."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The completion and the answer."""
        return ("completion", self.answer)

    def value(self, item: Mapping[str, Any]) -> Any:
        """Return the value of the text after `after`, 0 without it."""
        text = text_after(item["completion"], self.after)
        return 0.0 if text is None else super().value({**item, "completion": text})


class Exact(Checked):
    """1 if the final answer (`answers.final_answer`; the whole text when nothing marks one) equals that of the column.

    White space at the ends and its amount between words do not count. An empty answer column is None: the reward does
    not apply. Example: `"... #### Paris."` equals `"Paris"`.
    """

    ignore_case: bool = False
    """Whether `paris` equals `Paris`."""

    def __call__(self, completion: str, answer: Any) -> float | None:
        """Return 1.0, 0.0 or None as the class says; an `answer` that is not text is compared as text."""
        expected = self._plain(str(answer)) if answer is not None else ""
        return float(self._plain(completion) == expected) if expected else None

    def _plain(self, text: str) -> str:
        marked = final_answer(text)
        words = " ".join((text if marked is None else marked).split()).removesuffix(".")
        return words.casefold() if self.ignore_case else words


class Numeric(Checked):
    """1 if the final number (`answers.marked_number`) equals that of the column, compared exactly as fractions.

    None (does not apply) where the column holds no number. Example: `"... #### $1,234.0"` equals `1234`. A number with
    a percent sign equals the same number without one, and the fraction that it stands for: `50%` equals `50` and `0.5`.
    """

    unmarked: bool = True
    """Whether the last number of a text counts when nothing marks an answer."""

    def __call__(self, completion: str, answer: Any) -> float | None:
        """Return 1.0, 0.0 or None as the class says; `answer` is text or a number."""
        expected = marked_number(str(answer))
        if expected is None:
            return None
        found = marked_number(completion, self.unmarked)
        return float(found is not None and found.equals(expected))


class Task(Checked):
    """1 if the completion solves a problem of the built-in task, by the task's own checker and its `answer` column."""

    def __call__(self, completion: str, answer: Any) -> float | None:
        """Return 1.0 or 0.0."""
        return float(is_correct(completion, str(answer)))


class TaskSteps(Local):
    """The built-in task's step checker: every line of a completion is a step, 1 if it is right and 0 if not.

    All steps after a wrong one are wrong. The completion as a whole gets 1 or 0 for its answer, as with `task`; this is
    the value that is logged and evaluated. The task's column `question` is needed.
    """

    verifies: ClassVar[bool | None] = True
    default: ClassVar[str | None] = "task_steps"

    def complaint(self, row: Mapping[str, Any]) -> str | None:
        """Return why the row's question is none of the task's, or None if it is."""
        question = row.get("question")
        try:
            read_question(question if isinstance(question, str) else "")
        except ValueError:
            return f"column 'question' holds no question of the built-in task: {question!r:.60}"
        return None

    def __call__(self, completion: str, question: str) -> dict[str, Any]:
        """Return the value of the completion, and of its steps."""
        steps = check_steps(completion, question)
        return {
            "reward": float(is_correct(completion, read_question(question))),
            "step_ends": [end for end, _ in steps],
            "step_rewards": [float(right) for _, right in steps],
        }


class Regex(WorkerSettings):
    """1 if `pattern` matches, 0 if not. In a worker under a deadline: backtracking on model text can take forever."""

    scores_steps: ClassVar[bool] = False
    pattern: Pattern
    """A pattern of Python's `re`; flags inside it, such as `(?s)`."""

    mode: Literal["search", "full"] = "search"
    """Where it must match. "search": somewhere in the completion; "full": the whole completion."""

    def start(self, base: Path | None) -> Runner:
        """Run in workers."""
        return self.workers(MATCHER, {"pattern": self.pattern, "mode": self.mode})


class EnvironmentReward(Local):
    """The environment's own reward: its outcome for the episode plus its rewards of single turns.

    With process supervision each turn's reward stands at the last token that the policy wrote in it, and the outcome at
    the last of all. It does not apply to an episode that got neither.
    """

    default: ClassVar[str | None] = "environment"
    scores_turns: ClassVar[bool] = True

    def __call__(self, episode: Mapping[str, Any]) -> float | None:
        """Return the outcome plus the rewards of the turns, or None where there are none."""
        given = [turn["reward"] for turn in episode["turns"]] + [episode["outcome"]]
        rewards = [reward for reward in given if reward is not None]
        return sum(rewards) if rewards else None


class ReasoningGym(WorkerSettings):
    """The score, from 0 to 1, that the data set of `[data] kind = "reasoning_gym"` gives the answer."""

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = True
    default: ClassVar[str | None] = "reasoning_gym"

    after: str | None = None
    """Only the text after the last occurrence of this is the answer (`<answer>`); none: the marked answer
    (`#### 5`, `\\boxed{5}`), or all of the text."""

    def start(self, base: Path | None) -> Runner:
        """Run in workers."""
        return self.workers(f"{__name__}:Scored", {"after": self.after})


class Scored:
    """The worker's side, which makes the entry again that a row is about."""

    about = Accepts(needs=(("completion",), ("dataset",), ("index",))).as_json()

    def __init__(self, after: str | None) -> None:
        self._after = after

    def __call__(self, item: Mapping[str, Any]) -> float:
        """Return the score of a completion."""
        text = text_after(item["completion"], self._after)
        marked = final_answer(item["completion"]) if self._after is None else text
        answer = text if marked is None else marked
        dataset = reasoning_dataset(item["dataset"])
        return 0.0 if answer is None else float(dataset.score_answer(answer.strip(), dataset[item["index"]]))


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
