"""Dataclass fields from a table's keys: names, types and defaults, for parsers of words and `dataclasses.replace`.

Covered: `dataclasses.fields`, `asdict` and `replace`, `typing.get_type_hints`, transformers' `HfArgumentParser`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from oncurve.compat.dialect import Key

C = TypeVar("C")

TYPES: Mapping[str, Any] = {
    "reward_weights": list[float] | None,
    "label_names": list[str] | None,
    "logging_steps": float,
}
"""The types of fields of which neither the table's types nor the default tell them."""


class Computed(int):
    """A number that follows from other fields: given to a constructor, it is as if it was left out."""


def of_keys(keys: Iterable[Key]) -> Callable[[type[C]], type[C]]:
    """A class decorator: the class becomes a dataclass with a field for each key, with its own constructor.

    The instance's `__getattribute__` gives the values, and the class has the fields as `of_table`.
    """
    table = {key.theirs: key for key in keys}

    def decorate(made: type[C]) -> type[C]:
        made.__annotations__ = {name: type_of(key) for name, key in table.items()}
        for name, key in table.items():
            setattr(made, name, _field(key))
        dataclasses.dataclass(init=False, repr=False)(made)
        cast(Any, made).of_table = {each.name: each for each in dataclasses.fields(cast(Any, made))}
        return made

    return decorate


def type_of(key: Key) -> Any:
    """The type of a field as parsers of words read it: of several types that which a word can have.

    Tables are text too, because their words are JSON.
    """
    if key.theirs in TYPES:
        return TYPES[key.theirs]
    types = [each for each in key.types if each is not type(None)] or [type(key.default)]
    optional = type(None) in key.types or key.default is None
    if isinstance(key.default, list):
        return list[str]
    if dict in types:
        return dict | str | None
    found: Any = str if str in types or types == [type(None)] else types[0]
    return found | None if optional else found


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default. Raises TypeError: it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise TypeError(f"missing the argument {field.name!r}, which has no default")
    return field.default


def changed(named: Mapping[str, Any], *usual: Mapping[str, Any]) -> dict[str, Any]:
    """Of a value for every field those that a user gave: they are not computed, and not what a field usually is."""
    return {
        name: value
        for name, value in named.items()
        if not isinstance(value, Computed) and not any(name in each and _same(value, each[name]) for each in usual)
    }


def _same(value: Any, default: Any) -> bool:
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def _field(key: Key) -> Any:
    help_of = (key.note or ", ".join(key.ours)).replace("%", "%%")
    metadata = {"help": help_of}
    if isinstance(key.default, (list, dict)):
        default = key.default
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=key.default, metadata=metadata)
