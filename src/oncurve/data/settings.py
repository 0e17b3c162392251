"""What every data source has in common: how a row becomes a prompt; and the rows themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from oncurve.data.template import template_columns
from oncurve.spec import Component

__all__ = ["DataSettings", "Rows"]


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

    def __len__(self) -> int:
        return len(self.items)

    def select(self, indices: Sequence[int]) -> Rows:
        """The rows at these indices, with the numbers they had."""
        return replace(self, items=[self.items[i] for i in indices], numbers=[self.numbers[i] for i in indices])

    def first(self, count: int | None) -> Rows:
        """The first `count` rows; all of them for None."""
        return self if count is None or count >= len(self) else self.select(range(count))


class DataSettings(Component):
    """What every source has: how a row becomes a prompt, and how many are taken a step.

    prompt_column      the column that holds the prompt: a string, chat messages, or token ids
    template           makes the prompt from columns instead: `"{question}\\nAnswer:"`; `{{` and `}}` are braces
    system             a system message put before every prompt; needs a chat template
    chat               whether a prompt that is a string is put to the model as a user's message: "auto" does so where
                       the tokenizer has a chat template
    max_prompt_tokens  longest prompt allowed, in tokens; none: whatever fits the model
    overlong           what becomes of a longer one: "error", or "drop" (dropped before the run starts, and counted)
    limit              train on the first so many rows only
    shuffle            a new order each epoch, a function of `run.seed` and the epoch; false: the order of the source
    prompts_per_step   prompts a step
    """

    prompt_column: str = Field(default="prompt", min_length=1)
    template: str | None = None
    system: str | None = None
    chat: Literal["auto", "always", "never"] = "auto"
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    overlong: Literal["error", "drop"] = "error"
    limit: int | None = Field(default=None, ge=1)
    shuffle: bool = True
    prompts_per_step: int = Field(default=32, ge=1, le=10**6)

    @field_validator("template")
    @classmethod
    def _names_columns(cls, template: str | None) -> str | None:
        if template is not None:
            template_columns(template)
        return template

    @property
    def holds_out(self) -> bool:
        """Whether there may be held-out rows, told from the settings alone. Where it says nothing: `read` tells."""
        return True

    def check_keepable(self) -> None:
        """Raises DataError where a run's directory could not keep the rows; of files it keeps the path alone."""

    def read(self, base: Path | None) -> tuple[Rows, Rows]:
        """The source's training rows and its held-out rows, unchecked and unlimited. Each source has its own."""
        raise TypeError(f"{type(self).__name__} must define read(base) -> (training rows, held-out rows)")
