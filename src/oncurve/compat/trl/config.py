"""`GRPOConfig`: TRL's names and defaults, checked when it is made; the trainer translates it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.compat.dialect import Key, Said, Translation, Values
from oncurve.compat.recipe import recipe_of
from oncurve.compat.trl.dialect import CONFIG_KEYS, DIALECT, OLDER_KEYS
from oncurve.compat.trl.run_keys import sizes

KEYS = {key.theirs: key for key in (*CONFIG_KEYS, *OLDER_KEYS)}

PROCESS = {"world_size": 1, "process_index": 0, "local_process_index": 0, "n_gpu": 1, "should_save": True}
"""What callbacks read of TRL's arguments that is no field: there is one process."""

UNSAID = {"bf16": True, "output_dir": "trainer_output"}
"""The values of fields that were not given and have no default."""

TYPES: Mapping[str, Any] = {
    "reward_weights": list[float] | None,
    "label_names": list[str] | None,
    "include_for_metrics": list[str],
    "logging_steps": float,
}
"""The types of fields for parsers, where neither the table's types nor the default tell them."""


class Computed(int):
    """A number that follows from other fields: given to a constructor, it is as if it was left out."""


def type_of(key: Key) -> Any:
    """Return the type of a field for parsers: text where a word may be text, and for tables, which are JSON."""
    if key.theirs in TYPES:
        return TYPES[key.theirs]
    kinds = [each for each in key.types if each is not type(None)]
    kinds = kinds or [str if key.default is None else type(key.default)]
    if dict in kinds:
        return dict | str | None
    found: Any = str if str in kinds else kinds[0]
    return found | None if type(None) in key.types or key.default is None else found


def _field(key: Key) -> Any:
    help_of = {"help": (key.note or ", ".join(key.ours)).replace("%", "%%")}
    if isinstance(key.default, list):
        return dataclasses.field(default_factory=list, metadata=help_of)
    return dataclasses.field(default=key.default, metadata=help_of)


Fields: Any = dataclasses.make_dataclass(
    "Fields", [(key.theirs, type_of(key), _field(key)) for key in CONFIG_KEYS], init=False, repr=False
)
"""A dataclass of TRL's fields, for `dataclasses.replace`, `dataclasses.asdict` and `HfArgumentParser`."""


class GRPOConfig(Fields):  # type: ignore[misc]  # of a table
    """The settings of `GRPOTrainer`, by TRL's names and with its defaults: `GRPOConfig("out", learning_rate=2e-6)`.

    A field that was not given has TRL's default; `steps_per_generation` and `generation_batch_size` have the values
    that TRL computes. A subclass that is a dataclass may add fields, change defaults and have a `__post_init__`.

    Raises ConfigError, with a line for each: a name that TRL does not have, a value of a wrong type, one that is
    refused, or that contradicts another.
    """

    said: dict[str, Any]

    def __init_subclass__(cls) -> None:
        """Keep the constructor and the text of a subclass that is a dataclass."""
        for name in ("__init__", "__repr__"):
            setattr(cls, name, getattr(cls, name))

    def __init__(self, output_dir: Any = None, **given: Any) -> None:
        object.__setattr__(self, "said", {})
        named = given if output_dir is None else {"output_dir": output_dir, **given}
        table = Fields.__dataclass_fields__
        for each in dataclasses.fields(self):
            if each is not table.get(each.name):  # of a subclass
                if each.name not in named:
                    named[each.name] = _default_of(each)
                if each.name not in KEYS:
                    object.__setattr__(self, each.name, named.pop(each.name))
        if named.keys() >= table.keys() - {"output_dir"}:  # of a parser, or dataclasses.replace
            named = {name: value for name, value in named.items() if not _is_unsaid(name, value)}
        self.said.update({name: plain(name, value) for name, value in named.items()})
        self._check()
        self.__post_init__()

    def __post_init__(self) -> None:
        """Do nothing; for subclasses."""

    def __getattribute__(self, name: str) -> Any:
        if name not in KEYS:
            return object.__getattribute__(self, name)
        value = self.said.get(name, KEYS[name].default)
        if name == "scale_rewards":
            return {True: "group", False: "none"}.get(value, value)
        return self._computed(name) if value is None else value

    def __getattr__(self, name: str) -> Any:
        if name in PROCESS:
            return PROCESS[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def _computed(self, name: str) -> Any:
        """Return the value of a field that is None, or was not given and has no default."""
        if name == "steps_per_generation":
            return Computed(sizes(self.values()).accumulated)
        if name == "generation_batch_size":
            return Computed(sizes(self.values()).generation)
        if name == "bf16":
            return not self.fp16
        if name == "greater_is_better" and self.metric_for_best_model is not None:
            return True
        return UNSAID.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in KEYS and name in self.__dataclass_fields__:  # of a subclass
            return object.__setattr__(self, name, value)
        before = dict(self.said)
        self.said[name] = plain(name, value)
        try:
            self._check()
        except ConfigError:
            object.__setattr__(self, "said", before)
            raise

    def _check(self) -> None:
        """Raise ConfigError: a field that cannot be. The steps of an epoch are known to the trainer, by its rows."""
        epochs = [name for name in ("save_strategy", "eval_strategy") if self.said.get(name) == "epoch"]
        self.translated(**{name: Said("steps", type(self).__name__) for name in epochs})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.said.items())})"

    def to_dict(self) -> dict[str, Any]:
        """Return every field with its value."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    def values(self) -> Values:
        """Return the values of all keys, given or TRL's default."""
        return Values(DIALECT.table, self._placed())

    def _placed(self) -> dict[str, Said]:
        return {name: Said(value, type(self).__name__) for name, value in self.said.items()}

    def translated(self, **more: Said) -> Translation:
        """Return the settings here; `more`: other keys of the dialect, or other values. Raises ConfigError."""
        return DIALECT.translate({**self._placed(), **more})

    @property
    def recipe(self) -> str:
        """The settings as a recipe, with a comment per key; model, data and rewards are missing in it."""
        return recipe_of(self.translated())


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise TypeError(f"missing the argument {field.name!r}, which has no default")
    return field.default


def _is_unsaid(name: str, value: Any) -> bool:
    """Return whether a field has a value that it also has where it was not given."""
    usual = [KEYS[name].default, *([UNSAID[name]] if name in UNSAID else [])] if name in KEYS else []
    return isinstance(value, Computed) or any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in usual
    )


def plain(name: str, value: Any) -> Any:
    """Return a value as the table has it: enumerations and paths as text, JSON of a table as the table."""
    kinds = KEYS[name].types if name in KEYS else ()
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple) and list in kinds:
        return list(value)
    if isinstance(value, str) and dict in kinds:
        try:
            return json.loads(value)
        except ValueError:
            return value  # not of the right type, which the table says
    return dict(value) if isinstance(value, Mapping) else value
