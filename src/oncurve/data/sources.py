"""Sources of rows: files and the hub, a list in memory, problems of a task, seeds of games, entries of reasoning-gym.

The section `[data]`. Every row is read and checked before a model is loaded.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, JsonValue, ValidationInfo, field_validator

from oncurve import durable
from oncurve.base.errors import DataError
from oncurve.components import Impossible
from oncurve.data.columns import renamed, with_answer
from oncurve.data.containers import as_rows
from oncurve.data.files import RULES, Files
from oncurve.data.prompts import check_row
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

    impossible: ClassVar[tuple[Impossible, ...]] = (Impossible(lambda c: bool(c.columns), RULES["own_columns"]),)

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
        return TASKS[self.task](split, number, self.seed)


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


class InMemory(DataSettings):
    """Rows given as they are: mappings of columns, or prompts alone (strings, messages, token ids)."""

    eval_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The share to hold out, the same rows in every run."""

    rows: tuple[Any, ...] = ()
    """The rows, in any container that `oncurve.data.containers.as_rows` takes."""

    eval_rows: tuple[Any, ...] = ()
    """Held-out rows, in place of a share of `rows`."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(lambda c: bool(c.eval_rows) and c.eval_fraction > 0, RULES["rows_and_share_held_out"]),
    )

    def for_episodes(self) -> Self:
        """Return these settings; where the rows have no prompts, with empty ones."""
        first = self.rows[0] if self.rows else None
        if self.template is not None or not isinstance(first, Mapping):
            return self
        if {self.prompt_column} & {*first, *self.columns}:
            return self
        return self.model_copy(update={"template": ""})

    @field_validator("rows", "eval_rows", mode="before")
    @classmethod
    def _of_any_container(cls, rows: Any, info: ValidationInfo) -> tuple[Any, ...]:
        all_count = info.field_name == "eval_rows" or info.data.get("eval_fraction")  # held out are some of all rows
        return as_rows(rows, None if all_count else info.data.get("limit"))

    @property
    def holds_out(self) -> bool:
        """Rows of their own, or a share of the rows."""
        return self.eval_fraction > 0 or bool(self.eval_rows)

    def missing(self) -> list[str]:
        """Return the rows."""
        return [] if self.rows else ["data.rows: missing; there are 0 rows in memory"]

    def read(self, base: Path | None) -> tuple[Rows, Rows]:
        """Return the rows, a bare prompt put under `prompt_column`."""
        train, held_out = self._rows(self.rows, "data row").hold_out(self.eval_fraction)
        return train, self._rows(self.eval_rows, "held-out row") if self.eval_rows else held_out

    def _rows(self, rows: Sequence[Any], called: str) -> Rows:
        return Rows([self._row(row) for row in rows], range(len(rows)), lambda number: f"{called} {number}")

    def _row(self, row: Any) -> Mapping[str, Any]:
        return row if isinstance(row, Mapping) else {self.prompt_column: row}

    def check_keepable(self) -> None:
        """Raises DataError, with row and column, where JSON cannot hold a row."""
        for _ in (*self._lines(self.rows), *self._lines(self.eval_rows, "held-out row")):
            pass

    def _lines(self, rows: Sequence[Any], called: str = "data row") -> Iterator[str]:
        for number, row in enumerate(map(self._row, rows)):
            for column, value in row.items():
                try:
                    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
                except (TypeError, ValueError, RecursionError) as error:
                    raise DataError(
                        f"{called} {number}: column {column!r} cannot be kept in the run's directory: {error}; make it "
                        "a string, a number or a list of these, or leave `out` out"
                    ) from error
            yield json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"

    def kept_as(self, file: Path) -> Files:
        """Return the same rows as a file. Raises DataError where JSON cannot hold a row."""
        durable.write_file(file, "".join(self._lines(self.rows)).encode())
        held_out = file.with_name(f"eval_{file.name}")
        if self.eval_rows:
            durable.write_file(held_out, "".join(self._lines(self.eval_rows)).encode())
        shared = {key: getattr(self, key) for key in (*DataSettings.model_fields, "eval_fraction")}
        return Files(path=file.name, eval_path=held_out.name if self.eval_rows else None, **shared)


NO_ROWS = "data: there is no row to train on, and {} are held out: give more rows, or data.eval_fraction=0"

DATA_KINDS: dict[str, type[DataSettings]] = {
    "files": Files,
    "list": InMemory,
    "task": TaskRows,
    "seeds": Seeds,
    "reasoning_gym": ReasoningGymRows,
}


def load_rows(settings: DataSettings, base: Path | None = None) -> Rows:
    """Return the training rows, each checked to make a prompt. `base` is where relative paths start (the working
    directory).

    Raises DataError with file, line, column and a suggestion; also where there are no rows.
    """
    train, held_out = read_rows(settings, base)
    rows = _checked(train, settings).first(settings.limit)
    if not rows:
        raise DataError(NO_ROWS.format(len(held_out)))
    return rows


def load_eval_rows(settings: DataSettings, base: Path | None = None) -> Rows:
    """Return the held-out rows, checked like the others; there may be none."""
    return _checked(read_rows(settings, base)[1], settings)


def read_rows(settings: DataSettings, base: Path | None) -> tuple[Rows, Rows]:
    """Return the source's training rows and held-out rows. Raises DataError: it gives something else, or a file is
    missing.
    """
    try:
        found: object = settings.read(base)
    except OSError as error:
        raise DataError(f"data: {error.strerror}: {error.filename}") from error
    match found:
        case (Rows() as train, Rows() as held_out):
            return _with_columns(train, settings), _with_columns(held_out, settings)
    name = type(settings).__name__
    raise DataError(f"data.kind: {name}.read must return (training rows, held-out rows), two oncurve.data.Rows")


def _with_columns(rows: Rows, settings: DataSettings) -> Rows:
    """Return the rows with the columns of `data.columns`, and with the answer in a column of its own."""
    if rows.generated:
        return rows
    if settings.columns:
        places = map(rows.place, rows.numbers)
        named = [renamed(row, settings.columns, place) for row, place in zip(rows.items, places, strict=True)]
        rows = replace(rows, items=named)
    return replace(rows, items=[with_answer(row) for row in rows.items])


def _checked(rows: Rows, settings: DataSettings) -> Rows:
    if not rows.generated:  # those are right by construction
        for row, number in zip(rows.items, rows.numbers, strict=True):
            check_row(row, settings, rows.place(number))
    return rows
