"""Rows that are generated: problems of the built-in task, seeds of games, entries of reasoning-gym."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, JsonValue, field_validator

from oncurve.components import Impossible
from oncurve.data.settings import DataSettings, Rows
from oncurve.tasks import KINDS as TASKS, reasoning_dataset

HELD_OUT_SEED = 1 << 30
"""The first seed of held-out games, and that of held-out entries: no run trains on it."""


class GeneratedRows(DataSettings):
    """The fields of every generated source."""

    seed: int = 0
    """Seed of the training rows; the held-out ones are the same for all seeds."""

    size: int = Field(default=100_000, ge=1, le=10_000_000)
    """Training rows per epoch."""

    eval_size: int = Field(default=500, ge=0, le=10_000_000)
    """Held-out rows."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda data: bool(data.columns),
            "data.columns: generated rows have columns of their own; leave data.columns out",
        ),
    )

    @property
    def holds_out(self) -> bool:
        """Rows of their own."""
        return self.eval_size > 0

    def row(self, split: str, number: int) -> Mapping[str, Any]:
        """Return row `number`, from 0, of a split ("train" or "test")."""
        raise TypeError(f"{type(self).__name__} must define row()")

    def column_names(self) -> frozenset[str] | None:
        """Return the columns of the rows."""
        return frozenset(self.row("train", 0))

    def read(self, base: Path | None) -> tuple[Rows, Rows]:
        """Return both splits, each row made when it is asked for."""
        return self._split("train", self.size), self._split("test", self.eval_size)

    def _split(self, split: str, size: int) -> Rows:
        return Rows(_Generated(self, split, size), range(size), lambda n: f"{split} problem {n}", generated=True)


class TaskRows(GeneratedRows):
    """Generated problems of a built-in task: columns `prompt`, `question`, `answer`. None is in both splits."""

    task: str = "arithmetic"
    """The task's name."""

    @field_validator("task")
    @classmethod
    def _exists(cls, task: str) -> str:
        if task not in TASKS:
            raise ValueError(f"unknown task; the built-in tasks are: {', '.join(TASKS)}")
        return task

    def row(self, split: str, number: int) -> Mapping[str, Any]:
        """Return a problem of the task."""
        (found,) = TASKS[self.task](seed=self.seed).rows(split, 1, start=number)
        return dict(found)


class Seeds(GeneratedRows):
    """Rows for games, which say the rest themselves: columns `prompt`, the same in all rows, and `seed`."""

    prompt: str = ""
    """What stands before the text of the game."""

    def row(self, split: str, number: int) -> Mapping[str, Any]:
        """Return a row with its seed, from `seed` on."""
        return {"prompt": self.prompt, "seed": number + (self.seed if split == "train" else HELD_OUT_SEED)}


class ReasoningGymRows(GeneratedRows):
    """Entries of a data set of reasoning-gym, for the reward `reasoning_gym`: columns `prompt`, `question`, `answer`.
    The reward makes the entry again from the columns `dataset` and `index`. Where a data set has few different entries,
    held-out ones may occur in training.
    """

    name: str = Field(min_length=1)
    """The data set's name: "chain_sum"."""

    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Its settings: `{ max_terms = 3 }`."""

    size: int = Field(default=10_000, ge=1, le=10_000_000)
    """Training rows per epoch."""

    def missing(self) -> list[str]:
        """Return a line that says how to install the package, where it lacks."""
        lacks = "data.kind: reasoning_gym is not installed: pip install 'oncurve[reasoning-gym]'"
        return [] if find_spec("reasoning_gym") is not None else [lacks]

    def column_names(self) -> frozenset[str] | None:
        """Return the columns of the rows."""
        return frozenset(("prompt", "question", "answer", "dataset", "index"))

    def row(self, split: str, number: int) -> Mapping[str, Any]:
        """Return an entry. Raises DataError: there is no such data set, or it has other settings."""
        size, seed = (self.size, self.seed) if split == "train" else (self.eval_size, HELD_OUT_SEED)
        about = {"name": self.name, "size": size, "seed": seed, **self.config}
        entry = reasoning_dataset(about)[number]
        asked, answer = entry["question"], str(entry["answer"])
        return {"prompt": asked, "question": asked, "answer": answer, "dataset": about, "index": number}


@dataclass(frozen=True)
class _Generated(Sequence[Mapping[str, Any]]):
    """Rows made on access: a hundred thousand of them would take a second and 50 MB."""

    source: GeneratedRows
    split: str
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self.source.row(self.split, index)
