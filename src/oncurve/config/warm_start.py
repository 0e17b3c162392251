"""`[sft]`: the warm start of a run by demonstrations, and the configuration of that stage.

The stage is a run of its own, with the same trainer: its groups are demonstrations, its advantage is 1 for every token,
its objective the log-likelihood. What `[sft]` does not say is as in the other sections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from oncurve.base.errors import DataError
from oncurve.base.paths import is_data_set_id
from oncurve.components import Component
from oncurve.data import Content, DataSettings, DemonstrationRows, Files, InMemory, as_rows, load_demonstrations

SHARED = ("prompt_column", "template", "system", "chat", "chat_template_kwargs", "eval_fraction")
"""Settings of `[data]` that hold for demonstrations, too, where the source has them."""

OWN_NAMES = {"path": "data", "rows": "data", "eval_path": "eval_data", "eval_rows": "eval_data"}
OWN_NAMES |= {"columns": "columns", "limit": "limit"}
"""Settings of a data source, and what they are called in `[sft]`."""

Source = str | tuple[Any, ...] | None


class SftSettings(Component):
    """A warm start before step 1: supervised fine-tuning on demonstrations, rows with a prompt and its completion.

    What it does not say is as in the other sections: `[data]` makes the prompts and holds rows out, and model, adapter,
    optimizer, checkpoints, evaluation and trackers are the run's.
    """

    data: Source = None
    """The demonstrations, named like `data.path`, or rows in memory; none: no warm start. Rows have `prompt` and
    `completion`, `messages` (every turn of the assistant is trained) or `text`."""

    eval_data: Source = None
    """Held-out demonstrations, for `eval/loss` every `eval.every` steps; none: the share `data.eval_fraction`."""

    columns: dict[str, str] | None = None
    """Other names for columns, like `data.columns`: `{ prompt = "instruction", completion = "output" }`; none: those
    of `[data]`."""

    limit: int | None = Field(default=None, ge=1)
    """Train on this many demonstrations only, the first ones; none: on all."""

    max_length: int | None = Field(default=None, ge=2)
    """The most tokens of a demonstration, prompt and completion together; none: whatever fits the model. A longer one
    is an error, or left out with `data.overlong` = "drop". None is cut: the policy would learn not to end."""

    train_on_prompts: bool = False
    """Train the tokens of the prompts, too."""

    epochs: float = Field(default=3.0, gt=0, le=1e6)
    """How often to go through the demonstrations."""

    steps: int | None = Field(default=None, ge=1, le=10**9)
    """In place of `epochs`: the number of updates."""

    batch_size: int = Field(default=8, ge=1, le=10**6)
    """Demonstrations of one update."""

    learning_rate: float = Field(default=2e-5, ge=0)
    """In place of `learner.learning_rate`; an adapter takes about ten times as much."""

    @field_validator("data", "eval_data", mode="before")
    @classmethod
    def _a_place_or_rows(cls, given: Any) -> Any:
        return given if given is None or _places(given) else as_rows(given)

    @property
    def present(self) -> bool:
        """Return whether there are demonstrations."""
        return bool(self.data)

    def source(self, data: DataSettings) -> DataSettings:
        """Return the settings that read the demonstrations, whose prompts are made as those of `data`."""
        shared = {name: getattr(data, name) for name in SHARED if name in type(data).model_fields}
        shared |= {"columns": data.columns if self.columns is None else self.columns, "limit": self.limit}
        shared |= {} if self.eval_data is None else {"eval_fraction": 0.0}
        if not _places(self.data):
            return self._in_memory(**shared)
        paths = (self.data,) if isinstance(self.data, str) else self.data or ()
        of_the_hub = ("split", "subset", "revision") if any(map(is_data_set_id, paths)) else ()
        hub = {name: getattr(data, name) for name in of_the_hub if name in type(data).model_fields}
        return Files(path=self.data, eval_path=self.eval_data, **hub, **shared)

    def _in_memory(self, **shared: Any) -> InMemory:
        rows: Any = self.data or ()
        return InMemory(rows=rows, eval_rows=self.eval_data or (), **shared)  # type: ignore[arg-type]  # of `as_rows`

    def content(self, base: Path | None) -> Mapping[str, Content]:
        """Return what the files hold, by setting, so that a resume finds out that they have changed."""
        found = self.source(DataSettings()).content(base) if self.present else {}
        return {by_own_name(key): content for key, content in found.items()}

    def kept_as(self, file: Path) -> SftSettings:
        """Return the settings with which a resumed run reads the demonstrations; those in memory go to `file`."""
        if not self.present or _places(self.data):
            return self
        kept = self._in_memory().kept_as(file)
        return self.model_copy(update={"data": kept.path, "eval_data": kept.eval_path})

    def load(self, data: DataSettings, base: Path | None) -> DemonstrationRows:
        """Return the rows; `data` makes their prompts. Raises DataError, by the settings of this section."""
        try:
            return load_demonstrations(self.source(data), base)
        except DataError as error:
            raise DataError(by_own_name(str(error))) from error


def _places(given: Any) -> bool:
    """Return whether a value names files, as `data.path` does, and is not rows."""
    listed = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else [None]
    return bool(listed) and all(isinstance(each, str) for each in listed)


def by_own_name(text: str) -> str:
    """Return a message of `[data]` about a setting that this section has, too, by the name that it has here."""
    return re.sub(rf"\bdata\.({'|'.join(OWN_NAMES)})\b", lambda found: f"sft.{OWN_NAMES[found[1]]}", text)
