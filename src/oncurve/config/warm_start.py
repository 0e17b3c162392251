"""`[sft]`: the warm start of a run by demonstrations, and the configuration of that stage.

The stage is a run of its own, with the same trainer: its groups are demonstrations, its advantage is 1 for every token,
its objective the log-likelihood. What `[sft]` does not say is as in the other sections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from oncurve.base.errors import DataError
from oncurve.components import Component, Impossible, Inert
from oncurve.data import Content, DataSettings, DemonstrationRows, Files, InMemory, as_rows, load_demonstrations

AS_PROMPTS = ("prompt_column", "template", "system", "chat", "chat_template_kwargs")
"""Settings of `[data]` by which demonstrations become prompts, too."""

OF_FILES = ("split", "subset", "eval_path", "eval_split")


class SftSettings(Component):
    """A warm start before step 1: supervised fine-tuning on demonstrations, rows with a prompt and its completion.

    Prompts are made as `[data]` says; model, adapter, optimizer, checkpoints, evaluation and trackers are the run's.
    """

    path: str | tuple[str, ...] | None = None
    """The demonstrations, named like `data.path`; none: no warm start. Rows have `prompt` and `completion`, `messages`
    (every turn of the assistant is trained) or `text`."""

    rows: tuple[Any, ...] = ()
    """Demonstrations in memory, in place of `path`."""

    split: str | None = Field(default=None, min_length=1)
    """The split to train on, like `data.split`."""

    subset: str | None = Field(default=None, min_length=1)
    """Of a data set of the hub that has several: which one."""

    columns: dict[str, str] | None = None
    """Other names for columns, like `data.columns`: `{ prompt = "instruction", completion = "output" }`; none: those
    of `[data]`."""

    limit: int | None = Field(default=None, ge=1)
    """Train on this many demonstrations only, the first ones; none: on all."""

    eval_path: str | tuple[str, ...] | None = None
    """Held-out demonstrations, for `eval/loss` every `eval.every` steps."""

    eval_split: str | None = Field(default=None, min_length=1)
    """The split of held-out demonstrations."""

    eval_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Without these two: the share of the demonstrations to hold out, the same ones in every run."""

    eval_rows: tuple[Any, ...] = ()
    """Held-out demonstrations in memory."""

    max_length: int | None = Field(default=None, ge=2)
    """The most tokens of a demonstration, prompt and completion together; none: whatever fits the model."""

    overlong: Literal["error", "drop"] = "error"
    """What happens to a longer one: "error", or "drop": it is left out. None is cut: the policy would learn not to
    end."""

    train_on_prompts: bool = False
    """Train the tokens of the prompts, too."""

    epochs: float = Field(default=3.0, gt=0, le=1e6)
    """How often to go through the demonstrations."""

    steps: int | None = Field(default=None, ge=1, le=10**9)
    """In place of `epochs`: the number of updates."""

    batch_size: int = Field(default=8, ge=1, le=10**6)
    """Demonstrations of one update."""

    learning_rate: float = Field(default=2e-5, ge=0)
    """Peak of the schedule; an adapter takes about ten times as much."""

    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """As `learner.schedule`."""

    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """The share of the updates over which the learning rate rises."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda sft: sft.path is not None and bool(sft.rows),
            "sft.rows: sft.path names the demonstrations, too; leave one of them out",
        ),
    )
    inert: ClassVar[tuple[Inert, ...]] = (
        Inert(
            ("sft.learning_rate", "sft.epochs", "sft.steps", "sft.batch_size", "sft.columns", "sft.limit"),
            ("sft.path",),
            lambda sft: not sft.present,
            "without sft.path there is no warm start",
        ),
    )

    @field_validator("rows", "eval_rows", mode="before")
    @classmethod
    def _of_any_container(cls, rows: Any) -> tuple[Any, ...]:
        return as_rows(rows)

    @property
    def present(self) -> bool:
        """Return whether there are demonstrations."""
        return bool(self.path) or bool(self.rows)

    @property
    def holds_out(self) -> bool:
        """Return whether demonstrations are held out."""
        return self.source(DataSettings()).holds_out

    def source(self, data: DataSettings) -> DataSettings:
        """Return the settings that read the demonstrations, whose prompts are made as those of `data`."""
        shared = {name: getattr(data, name) for name in AS_PROMPTS}
        shared |= {"columns": data.columns if self.columns is None else self.columns}
        shared |= {"limit": self.limit, "eval_fraction": self.eval_fraction}
        if self.path:
            return Files(path=self.path, **{name: getattr(self, name) for name in OF_FILES}, **shared)
        return InMemory(rows=self.rows, eval_rows=self.eval_rows, **shared)

    def content(self, base: Path | None) -> Mapping[str, Content]:
        """Return what the files hold, by setting, so that a resume finds out that they have changed."""
        found = self.source(DataSettings()).content(base) if self.path else {}
        return {by_own_name(key): content for key, content in found.items()}

    def kept_as(self, file: Path) -> SftSettings:
        """Return the settings by which a resumed run reads the demonstrations; those in memory are written to
        `file`.
        """
        if not self.rows:
            return self
        kept = InMemory(rows=self.rows, eval_rows=self.eval_rows).kept_as(file)
        return self.model_copy(update={"path": kept.path, "eval_path": kept.eval_path, "rows": (), "eval_rows": ()})

    def load(self, data: DataSettings, base: Path | None) -> DemonstrationRows:
        """Return the rows; `data` makes their prompts. Raises DataError, by the settings of this section."""
        try:
            return load_demonstrations(self.source(data), base)
        except DataError as error:
            raise DataError(by_own_name(str(error))) from error


def by_own_name(text: str) -> str:
    """Return a message of `[data]` about a setting that this section has, too, by the name that it has here."""
    return re.sub(r"\bdata\.(?=(path|rows|split|subset|columns|limit|eval_\w+)\b)", "sft.", text)
