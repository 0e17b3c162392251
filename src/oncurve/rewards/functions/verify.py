"""Verifiable rewards: `exact`, `numeric`, `regex`, the built-in `task`, an environment's own, and reasoning-gym's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
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
