"""`GRPOConfig`: TRL's names and defaults, checked when it is made; the trainer, or a printed recipe, translates it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from oncurve.base.errors import ConfigError
from oncurve.compat.dialect import Dialect, Key, Said, Translation, Values
from oncurve.compat.trl.dialect import CONFIG_KEYS, DIALECT, OLDER_KEYS
from oncurve.compat.trl.fields import Computed, changed, default_of, of_keys
from oncurve.compat.trl.sizes import sizes

FIELDS = {key.theirs: key for key in (*CONFIG_KEYS, *OLDER_KEYS)}
PROCESS = {"world_size": 1, "process_index": 0, "local_process_index": 0, "n_gpu": 1, "should_save": True}
"""What callbacks read of TRL's arguments that is no field: there is one process."""

USUAL = {"bf16": True, "output_dir": "trainer_output"}
"""What fields without a value are in a config."""


class TableConfig:
    """The arguments of a trainer as TRL's dataclass of them, by a table; a class of its own per trainer.

    A dataclass whose fields are the table's keys (`oncurve.compat.trl.fields`), so that `dataclasses.replace`,
    `dataclasses.asdict` and `HfArgumentParser` take it. A subclass that is a dataclass may add fields, change defaults
    and have a `__post_init__`. A field that was not given has TRL's default. Raises
    ConfigError, with a line for each: a name that TRL does not have, a value of a wrong type, one that is refused, or
    that contradicts another.
    """

    dialect: ClassVar[Dialect]
    """The table."""

    keys: ClassVar[Mapping[str, Key]]
    """Its fields, by name."""

    of_table: ClassVar[Mapping[str, dataclasses.Field[Any]]]
    """The table's fields, without those of a subclass."""

    if TYPE_CHECKING:
        said: dict[str, Any]

    def __init_subclass__(cls) -> None:
        """Keep the constructor and the text of a subclass that is a dataclass."""
        for name in ("__init__", "__repr__"):
            setattr(cls, name, getattr(cls, name))

    def __init__(self, output_dir: Any = None, **given: Any) -> None:
        object.__setattr__(self, "said", {})
        named = given if output_dir is None else {"output_dir": output_dir, **given}
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            if each is not self.of_table.get(each.name):  # of a subclass
                value = named[each.name] if each.name in named else default_of(each)
                named[each.name] = value
                if each.name not in self.keys:
                    object.__setattr__(self, each.name, named.pop(each.name))
        if named.keys() >= self.of_table.keys() - {"output_dir"}:  # of a parser, or dataclasses.replace
            named = changed(named, {name: key.default for name, key in self.keys.items()}, USUAL)
        self.said.update({name: plain(name, value, self.keys) for name, value in named.items()})
        self._check()
        self.__post_init__()

    def __post_init__(self) -> None:
        """Do nothing; for subclasses."""

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "keys"):
            return self.value_of(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name in PROCESS:
            return PROCESS[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def value_of(self, name: str) -> Any:
        """Return the value of a field: the given one, the default, or the computed one in place of None."""
        value = self.said.get(name, self.keys[name].default)
        return self.computed(name) if value is None else value

    def computed(self, name: str) -> Any:
        """The value of a field that is None, or was not given and has no default."""
        if name == "bf16":
            return not self.fp16
        if name == "greater_is_better" and self.metric_for_best_model is not None:
            return True
        return "trainer_output" if name == "output_dir" else None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.keys and name in {each.name for each in dataclasses.fields(self)}:  # type: ignore[arg-type]
            return object.__setattr__(self, name, value)
        before = dict(self.said)
        self.said[name] = plain(name, value, self.keys)
        try:
            self._check()
        except ConfigError:
            self.said.clear()
            self.said.update(before)
            raise

    def _check(self) -> None:
        """Raises ConfigError: a field that cannot be. The steps of an epoch are known to the trainer, by its rows."""
        epochs = [name for name in ("save_strategy", "eval_strategy") if self.said.get(name) == "epoch"]
        self.translated(**{name: Said("steps", type(self).__name__) for name in epochs})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.said.items())})"

    def to_dict(self) -> dict[str, Any]:
        """Every field of TRL's with its value."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]

    def values(self) -> Values:
        """The values of all keys, given or TRL's default."""
        return Values(self.dialect.table, self.placed())

    def placed(self) -> dict[str, Said]:
        """The given fields as the dialect takes them."""
        return {name: Said(value, type(self).__name__) for name, value in self.said.items()}

    def translated(self, **more: Said) -> Translation:
        """The settings here; `more`: other keys of the dialect, or other values. Raises ConfigError."""
        return self.dialect.translate({**self.placed(), **more})


@of_keys(CONFIG_KEYS)
class GRPOConfig(TableConfig):
    """The settings of `GRPOTrainer`, by TRL's names and with its defaults: `GRPOConfig("out", learning_rate=2e-6)`.

    `steps_per_generation` and `generation_batch_size` have the values that TRL computes.
    """

    dialect = DIALECT
    keys = FIELDS

    def value_of(self, name: str) -> Any:
        """Return the value of a field, as TRL has it."""
        value = super().value_of(name)
        return {True: "group", False: "none"}.get(value, value) if name == "scale_rewards" else value

    def computed(self, name: str) -> Any:
        """The same; of the sizes of a generation what TRL computes."""
        if name in ("steps_per_generation", "generation_batch_size"):
            found = sizes(self.values())
            return Computed(found.accumulated if name == "steps_per_generation" else found.generation)
        return super().computed(name)


def plain(name: str, value: Any, keys: Mapping[str, Key] = FIELDS) -> Any:
    """A value as the table has it: enumerations and paths as text, JSON of a table as the table."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple) and name in keys and list in keys[name].types:
        return list(value)
    if isinstance(value, str) and name in keys and dict in keys[name].types:
        try:
            return json.loads(value)
        except ValueError:
            return value  # not of the right type, which the table says
    return dict(value) if isinstance(value, Mapping) else value
