"""Sentences on one key of a recipe: its default, the values that it takes, and its meaning."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from oncurve.base.errors import ConfigError, suggest
from oncurve.components import Component
from oncurve.config.sections import SECTIONS
from oncurve.kl import KL_KINDS
from oncurve.losses import AGGREGATION_KINDS
from oncurve.metrics import METRICS
from oncurve.rewards import REWARD_KINDS
from oncurve.tracking import TRACKER_KINDS

NAMES_OF: dict[str, Iterable[str]] = {"estimator": KL_KINDS, "aggregation": AGGREGATION_KINDS, "to": TRACKER_KINDS}
"""The names that a key of type string may have."""

NAMES = {int: "whole number", float: "number", str: "string", bool: "true, false", type(None): "none", Any: "anything"}
KINDS: dict[str, Mapping[str, type[Component]]] = {name: section.kinds for name, section in SECTIONS.items()} | {
    "rewards": REWARD_KINDS
}


def explain_key(key: str) -> str | None:
    """Return the lines about `section.key`, about all keys of a section, or about a metric; None: there is no such one.

    A key that several kinds of the section have is explained once for all kinds that agree. Raises ConfigError: the
    section has no such key, or there is no such metric.
    """
    if (metric := METRICS.get(key)) is not None:
        parts = {"meaning": metric.meaning, "formula": metric.formula, "advice": metric.advice}
        return "\n".join([key, *(line for label, text in parts.items() for line in _line(label, text))])
    section, _, name = key.partition(".")
    name = name.rpartition(".")[2] if section == "rewards" else name
    found: dict[str, list[str]] = {}
    for kind, cls in KINDS.get(section, {}).items():
        for field in cls.model_fields:
            if name in ("", field):
                found.setdefault("\n".join(_lines(f"{section}.{field}", cls, field)), []).append(kind)
    if section in SECTIONS and SECTIONS[section].default is not None and name in ("", "kind"):
        kinds = names(SECTIONS[section].kinds)
        found[f"{section}.kind\n  default  {SECTIONS[section].default}\n  values   {kinds}, or a class by path"] = []
    fields = [f"{section}.{field}" for cls in KINDS.get(section, {}).values() for field in cls.model_fields]
    near = "" if found else suggest(key, fields or METRICS)
    if not found and (fields or (near and "/" in key)):
        raise ConfigError(f"{key}: there is no such key{near}")
    several = len(KINDS.get(section, ())) > 1
    of = (f"\n  kinds    {', '.join(kinds)}" if several and kinds else "" for kinds in found.values())
    return "\n".join(text + of_kinds for text, of_kinds in zip(found, of, strict=True)) or None


def _lines(key: str, cls: type[Component], name: str) -> Iterator[str]:
    yield key
    for label, text in zip(("default", "values", "meaning"), key_facts(cls, name), strict=True):
        yield from _line(label, text)


def _line(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, 112, initial_indent=f"  {label:<9}", subsequent_indent=" " * 11)


def key_facts(cls: type[Component], name: str) -> tuple[str, str, str]:
    """Return the default, the values and the meaning of a field, as Markdown."""
    field = cls.model_fields[name]
    values = names(NAMES_OF[name]) if name in NAMES_OF else _values(field.annotation)
    if name == "to":
        values = f"list of {values}, or classes by path"
    return _default(field), values, meanings(cls)[name]


def names(kinds: Iterable[str]) -> str:
    """Return the names as a list in Markdown."""
    return ", ".join(f"`{kind}`" for kind in kinds)


@functools.cache
def meanings(cls: type[Component]) -> dict[str, str]:
    """Return the string under each field of a class, or of the base that declares it last. Raises KeyError later:
    a field without one has no entry.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(Component)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, said in itertools.pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            match field, said:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{list(value) if isinstance(value, tuple) else format(value, 'g') if isinstance(value, float) else value}`"


def _values(annotation: Any) -> str:
    """Return the type in words."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f'`"{choice}"`' if isinstance(choice, str) else f"`{choice}`" for choice in inner)
    if origin is typing.Annotated:
        return _values(inner[0])
    if origin in (tuple, list):
        kinds = list(dict.fromkeys(_values(each) for each in inner if each is not Ellipsis))
        return f"list of {' or '.join(kinds)}"
    if origin is dict:
        return "table"
    if inner and (origin is typing.Union or str(origin) == "<class 'types.UnionType'>"):
        return " or ".join(_values(each) for each in inner)
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())
