"""The training data of a reward model: preference pairs and labelled steps. The section `[data]` of its recipe.

Files are read as those of `[data]` are. A chat's messages are `{"role", "content"}` or `{"from", "value"}`. Rows of one
prompt are held out together, so that no held-out prompt is trained on.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from oncurve.base.errors import DataError, suggest
from oncurve.components import Component
from oncurve.data import HOLD_OUT_SEED, read_file
from oncurve.randomness import permutation
from oncurve.types import Messages


@dataclass(frozen=True)
class PreferencePair:
    """Two completions of one prompt, the better one first: what an outcome reward model learns from.

    Example: `PreferencePair("2+2=", "4", "5")`. `margin`: by how much the reward of `chosen` should be higher.
    """

    prompt: Messages
    chosen: Messages
    rejected: Messages
    margin: float = 0.0


@dataclass(frozen=True)
class LabelledSteps:
    """A completion with labelled steps: what a process reward model learns from.

    `ends[j]` is the offset in `completion` just after step j. `labels[j]` in 0 ... 1 says whether step j is right, or
    which share of its continuations is; None: unknown.

    Example: `LabelledSteps("2+2+1=", "4+1\\n6", (4, 5), (1.0, 0.0))`.
    """

    prompt: Messages
    completion: str
    ends: tuple[int, ...]
    labels: tuple[float | None, ...]


Example = PreferencePair | LabelledSteps
ROLES = {"human": "user", "gpt": "assistant"}


class RewardExamples(Component):
    """The fields of both kinds of examples: where the rows are."""

    teaches: ClassVar[Literal["outcome", "process"]] = "outcome"
    """Which kind of reward model learns from these examples."""

    path: str = ""
    """The file, relative to the recipe."""

    eval_path: str | None = None
    """Another such file, of held-out rows."""

    eval_fraction: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Without `eval_path`: the share of prompts whose rows are held out, the same ones in every run."""

    prompt_column: str = Field(default="prompt", min_length=1)
    """The column of the prompt: a string, or chat messages. Pairs of whole chats need none."""

    limit: int | None = Field(default=None, ge=1)
    """Use only this many rows, the first ones; none: all."""

    def read(self, base: Path | None = None, key: str = "data.path") -> tuple[list[Example], list[Example]]:
        """Return examples to train on and held-out ones. Raises DataError, with the row and what is wrong with it."""
        if not self.path:
            raise DataError(f"{key}: missing; name a file of rows")
        examples = self._file(key, self.path, base)[: self.limit]
        if self.eval_path is not None:
            return examples, self._file("data.eval_path", self.eval_path, base)
        return _hold_out(examples, self.eval_fraction)

    def example(self, row: Mapping[str, Any]) -> Example:
        """Return the example of one row. Raises DataError, KeyError and TypeError."""
        raise TypeError(f"{type(self).__name__} must define example(row)")

    def _file(self, key: str, path: str, base: Path | None) -> list[Example]:
        file = Path(path).expanduser() if base is None else base / Path(path).expanduser()
        rows, examples = read_file(file, key), []
        for number, row in zip(rows.numbers, rows.items, strict=True):
            try:
                examples.append(self.example(row))
            except KeyError as error:
                near = suggest(str(error.args[0]), row)
                listed = ", ".join(map(str, row)) or "none"
                raise DataError(
                    f"{rows.place(number)}: there is no column {error.args[0]!r}{near or ';'} its columns are: {listed}"
                ) from None
            except (TypeError, ValueError) as error:
                raise DataError(f"{rows.place(number)}: {error}") from None
        return examples


class Preferences(RewardExamples):
    """Pairs (`kind = "preferences"`): columns `chosen` and `rejected`, and `margin` where there is one."""

    def example(self, row: Mapping[str, Any]) -> PreferencePair:
        """Return the pair of one row. Without a prompt chosen and rejected are whole texts or chats."""
        chosen, rejected = _messages(row["chosen"], "chosen"), _messages(row["rejected"], "rejected")
        if () in (chosen, rejected):
            raise TypeError("chosen and rejected: expected a text, or chat messages, got an empty list")
        prompt: Messages = "" if isinstance(chosen, str) else ()
        if self.prompt_column in row:
            prompt = _messages(row[self.prompt_column], self.prompt_column)
        elif self.prompt_column != "prompt":
            raise KeyError(self.prompt_column)
        margin = row.get("margin")
        return PreferencePair(prompt, chosen, rejected, 0.0 if margin is None else _number(margin, "margin"))


class StepLabels(RewardExamples):
    """Completions with labelled steps (`kind = "steps"`)."""

    teaches: ClassVar[Literal["outcome", "process"]] = "process"
    steps_column: str = "completions"
    """The column of the completion: a list of its steps."""

    labels_column: str = "labels"
    """The column of their labels: a list of true, false, a share in 0 ... 1, or null for a step without a label. Or the
    index of the first wrong step alone, from 0, null where all are right; the steps after it have no label."""

    separator: str = "\n"
    """The text between two steps."""

    threshold: float | None = Field(default=None, ge=0, lt=1)
    """Makes labels hard: above it a step is right, at or below it wrong; none: labels as they are."""

    def example(self, row: Mapping[str, Any]) -> LabelledSteps:
        """Return the completion of one row; one that has `ends` is as `example_to_json` writes it."""
        prompt = _messages(row[self.prompt_column], self.prompt_column)
        if "ends" in row:
            completion, ends = row["completion"], _ends(row["ends"], row["completion"])
            return LabelledSteps(prompt, completion, ends, self._labels(row[self.labels_column], len(ends)))
        steps = row[self.steps_column]
        if not isinstance(steps, list) or not steps or not all(isinstance(s, str) and s.strip() for s in steps):
            raise TypeError(f"{self.steps_column}: expected a list of steps, texts that are not empty")
        written = [step + self.separator for step in steps[:-1]] + [steps[-1]]
        labels = self._labels(row[self.labels_column], len(steps))
        return LabelledSteps(prompt, "".join(written), tuple(accumulate(map(len, written))), labels)

    def _labels(self, given: Any, count: int) -> tuple[float | None, ...]:
        if given is None or (isinstance(given, int) and not isinstance(given, bool)):
            first = count if given is None else given
            if not 0 <= first <= count or (given is not None and first == count):
                raise ValueError(
                    f"{self.labels_column}: step {given} is the first wrong one, and there are {count}, counted from "
                    "0; where all are right it is null"
                )
            return tuple(1.0 if index < first else 0.0 if index == first else None for index in range(count))
        if not isinstance(given, list) or len(given) != count:
            raise ValueError(f"{self.labels_column}: expected a label for each of {count} steps, or one index")
        labels = [None if label is None else _number(label, self.labels_column) for label in given]
        if any(label is not None and not 0 <= label <= 1 for label in labels):
            raise ValueError(f"{self.labels_column}: a label is true, false, or in 0 ... 1")
        if self.threshold is None:
            return tuple(labels)
        return tuple(None if label is None else float(label > self.threshold) for label in labels)


REWARD_EXAMPLE_KINDS: dict[str, type[Component]] = {"preferences": Preferences, "steps": StepLabels}


def example_to_json(example: Example) -> dict[str, Any]:
    """Return an example as JSON can hold it; `example_from_json` is the inverse."""
    if isinstance(example, PreferencePair):
        pair = {"prompt": example.prompt, "chosen": example.chosen, "rejected": example.rejected}
        return {**pair, "margin": example.margin}
    known = {"prompt": example.prompt, "completion": example.completion}
    return {**known, "ends": list(example.ends), "labels": list(example.labels)}


def example_from_json(record: Mapping[str, Any]) -> Example:
    """Return the example that `example_to_json` wrote."""
    return (Preferences if "chosen" in record else StepLabels)().example(record)


def _ends(given: Any, completion: Any) -> tuple[int, ...]:
    """Return offsets just after the steps of a completion, ascending."""
    if not isinstance(completion, str):
        raise TypeError(f"completion: expected a text, got {completion!r:.60}")
    ends = list(given) if isinstance(given, (list, tuple)) else []
    whole = ends and all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
    if not whole or ends != sorted(set(ends)) or not 0 < ends[0] <= ends[-1] <= len(completion):
        raise TypeError(f"ends: expected rising offsets in a completion of {len(completion)}, got {given!r:.60}")
    return tuple(ends)


def _messages(value: Any, column: str) -> Messages:
    """Return a text, or the messages of a chat in either of their spellings."""
    if isinstance(value, str):
        return value
    messages = [value] if isinstance(value, Mapping) else value
    if not isinstance(messages, (list, tuple)) or not all(isinstance(message, Mapping) for message in messages):
        raise TypeError(f"{column}: expected a text, or chat messages, got {value!r:.60}")
    return tuple(_message(message, column) for message in messages)


def _message(message: Mapping[str, Any], column: str) -> dict[str, Any]:
    if isinstance(message.get("content"), str) and isinstance(message.get("role"), str):
        return dict(message)
    if isinstance(message.get("value"), str) and isinstance(message.get("from"), str):
        return {"role": ROLES.get(message["from"], message["from"]), "content": message["value"]}
    raise TypeError(f'{column}: a message has "role" and "content" (or "from" and "value"), got {dict(message)!r:.60}')


def _number(value: Any, column: str) -> float:
    if isinstance(value, str):  # a cell of a CSV file
        with suppress(ValueError):
            value = float(value)
    if not isinstance(value, (bool, int, float)) or not math.isfinite(value):
        raise TypeError(f"{column}: expected a number, true or false, got {value!r:.60}")
    return float(value)


def _hold_out(examples: Sequence[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """Return the examples in two parts, those of one prompt together; where all have one prompt, by themselves."""
    keys = [hashlib.sha256(json.dumps(example.prompt, sort_keys=True).encode()).digest() for example in examples]
    if len(set(keys)) == 1:
        keys = [str(number).encode() for number in range(len(examples))]
    distinct = list(dict.fromkeys(keys))
    count = round(fraction * len(distinct))
    held = {distinct[index] for index in permutation(HOLD_OUT_SEED, 0, len(distinct))[:count].tolist()}
    train = [example for example, key in zip(examples, keys, strict=True) if key not in held]
    return train, [example for example, key in zip(examples, keys, strict=True) if key in held]
