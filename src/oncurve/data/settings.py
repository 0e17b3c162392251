"""The base of every data source: settings that make a prompt of a row; and the rows themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, field_validator

from oncurve.base.errors import suggest
from oncurve.components import Component, unflagged
from oncurve.data.columns import template_columns
from oncurve.models.loading import RENDERING
from oncurve.randomness import permutation

HOLD_OUT_SEED = 0  # not run.seed: runs that differ in their seed are evaluated on the same rows


@dataclass(frozen=True)
class Rows:
    """Rows and where each came from: `numbers[i]` is row i's number in its source, `place(number)` says it in words.

    A row is a mapping of columns. Its number is its prompt's id, a part of the randomness key: it is counted before
    anything is held out, limited or dropped. `generated` rows are made on demand and all alike: they need no check one
    by one. Example: `Rows([{"prompt": "2+2="}], [0], lambda n: f"data row {n}")`.
    """

    items: Sequence[Mapping[str, Any]]
    numbers: Sequence[int]
    place: Callable[[int], str]
    generated: bool = False
    mixture: tuple[tuple[int, float], ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def select(self, indices: Sequence[int]) -> Rows:
        """Return the rows at these indices, with the numbers they had."""
        return replace(self, items=[self.items[i] for i in indices], numbers=[self.numbers[i] for i in indices])

    def first(self, count: int | None) -> Rows:
        """Return the first `count` rows; all of them for None."""
        return self if count is None or count >= len(self) else self.select(range(count))

    def hold_out(self, fraction: float) -> tuple[Rows, Rows]:
        """Return the rows in two parts, the second of `fraction` of them, each in its old order.

        The second has at least one row where `fraction` is not 0.
        """
        count = min(len(self), max(1, round(fraction * len(self)))) if fraction > 0 else 0
        held = set(permutation(HOLD_OUT_SEED, 0, len(self))[:count].tolist())
        rest = self.select([i for i in range(len(self)) if i not in held]) if held else self
        return rest, self.select(sorted(held))


@dataclass(frozen=True)
class Content:
    """The content of a setting's files, for the record of a run: `parts[name]` is the size in bytes and the sha256.

    Example: `Content("/data/train.jsonl", {"": (4166206, "f7ab...")})`.
    """

    path: str
    parts: Mapping[str, tuple[int, str]]


class DataSettings(Component):
    """The fields of every source: how a row becomes a prompt, and how many prompts a step takes."""

    prompt_column: str = Field(default="prompt", min_length=1)
    """The column that holds the prompt: a string, chat messages, or token ids."""

    columns: dict[str, str] = Field(default_factory=dict)
    """Other names for columns: `{ prompt = "question", answer = "reward_model.ground_truth" }` makes the column
    `prompt` of `question`, and `answer` of an entry of the table `reward_model`."""

    template: str | None = None
    """Makes the prompt from columns instead: `"{question}\\nAnswer:"`; `{{` and `}}` are braces. Empty, `""`: the
    row has no prompt, and an environment says what is asked."""

    system: str | None = None
    """A system message put before every prompt; it needs a chat template."""

    chat: Literal["auto", "always", "never"] = "auto"
    """Whether a prompt that is a string becomes a user's message; "auto": where the tokenizer has a chat template."""

    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Variables of the model's chat template: `{ enable_thinking = false }` for Qwen3. Every prompt is rendered with
    them, in training, evaluation and for a teacher; a reward model's template is its own."""

    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """The longest prompt allowed, in tokens; none: whatever fits the model."""

    overlong: Literal["error", "drop", "truncate_left"] = "error"
    """What happens to a longer prompt: "error"; "drop": it is left out; "truncate_left": its last tokens are kept, and
    the chat template's first ones are lost. The plan has the number of prompts."""

    limit: int | None = Field(default=None, ge=1)
    """Train on this many rows only, the first ones; none: on all."""

    shuffle: bool = True
    """A new order each epoch, a function of `run.seed` and the epoch; false: the order of the source."""

    curriculum: Literal["none", "pass_rate"] = "none"
    """With "pass_rate" a step's prompts are drawn by how often their completions were right so far, in place of
    epochs: those that are right now and then more often than those that always are, or never."""

    prompts_per_step: int = Field(default=32, ge=1, le=10**6)
    """Prompts per step."""

    @field_validator("template")
    @classmethod
    def _names_columns(cls, template: str | None) -> str | None:
        if template is not None:
            template_columns(template)
        return template

    @field_validator("chat_template_kwargs")
    @classmethod
    def _variables_alone(cls, variables: dict[str, JsonValue]) -> dict[str, JsonValue]:
        reserved = [name for name in variables if name in RENDERING]
        if reserved:
            raise ValueError(f"{reserved[0]} is no variable of a template: it decides how the template is applied")
        return variables

    @property
    def holds_out(self) -> bool:
        """Return whether there may be held-out rows, told from the settings alone. Where it says nothing: `read`
        tells.
        """
        return True

    def column_names(self) -> frozenset[str] | None:
        """Return the columns that all rows have at the source, told from the settings alone; None: only the rows
        tell.
        """
        return None

    def unknown_column(self) -> str | None:
        """Return the sentence that the source has no column of the prompt's; None: it has them, or only the rows
        tell.
        """
        if self.template is None:
            return self._without("data.prompt_column", [self.prompt_column])
        return self.wrong_template("data.template", self.template)

    def wrong_template(self, key: str, template: str) -> str | None:
        """Return what is wrong with the template that is the value of `key`, or None, or only the rows tell."""
        try:
            return self._without(key, template_columns(template))
        except ValueError as error:
            return f"{key}: {error}"

    def _without(self, key: str, wanted: Sequence[str]) -> str | None:
        known = self.column_names()
        if known is None:
            return None
        known = known - set(self.columns.values()) | set(self.columns)
        lost = [column for column in wanted if column not in known]
        if not lost:
            return None
        near = suggest(lost[0], known) or ";"
        return f"{key}: there is no column {lost[0]!r}{near} the columns are: {', '.join(sorted(known))}"

    def for_episodes(self) -> Self:
        """Return these settings for episodes, in which an environment may say the prompt."""
        return self

    def missing(self) -> list[str]:
        """Return a line for each setting that the source cannot do without and that is not given."""
        return []

    def content(self, base: Path | None) -> Mapping[str, Content]:
        """Return what the files of the data hold, by setting, so that a resume finds out that they have changed.

        Settings that are left out are compared as they are written.
        """
        return {}

    def check_keepable(self) -> None:
        """Raises DataError where a run's directory could not keep the rows; of files it keeps the path alone."""

    def kept_as(self, file: Path) -> DataSettings:
        """Return the settings by which a resumed run reads the rows again; rows that are in no file are written to
        `file`.

        The path in them is relative to the file's folder. Raises DataError where the rows cannot be kept.
        """
        return self

    def read(self, base: Path | None) -> tuple[Rows, Rows]:
        """Return the source's training rows and its held-out rows, unchecked and unlimited. Each source has its own."""
        raise TypeError(f"{type(self).__name__} must define read(base) -> (training rows, held-out rows)")


def check_data(data: object) -> str | None:
    """Return what is wrong with a data source, or with what it states of itself, or None."""
    name = type(data).__name__
    if not isinstance(data, DataSettings):
        return f"{name} is no data source: derive it from oncurve.data.DataSettings"
    if type(data).read is DataSettings.read:
        return f"{name} lacks read(base) -> (training rows, held-out rows), so it is no data source"
    return unflagged(data, ("holds_out",))
