"""The base of all settings, and the functions that build objects from them.

A *component* is its settings: a frozen pydantic model whose fields are the configuration's keys. `build` turns
a table such as `{"kind": "clipped", "clip_high": 0.28}` into one, and `explain_validation` turns validation errors
into messages for the user.

Covered: strict keys, near names, no silent coercion (`true` is not 1, `"5"` is not 5).
Not covered: files, layers and presets (`oncurve.config.loading`).
"""

import difflib
import json
import math
import re
import shlex
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from oncurve.base.errors import ConfigError, nearest, shown, suggest
from oncurve.base.hints import kind_for, word_for
from oncurve.base.imports import FILE_MODULE, locate, looking, only_looking

Settings = TypeVar("Settings", bound="Component")


class Component(BaseModel):
    """Base of all settings: frozen, unknown keys refused, numbers never made from strings or booleans.

    There are two exceptions. YAML 1.1 reads `1e-6` (no dot) as a string, so a string in exponent notation becomes a
    number where only a number is allowed. And TOML has no null, so `"none"` becomes None where a number or None is
    allowed. `nested` are the keys whose tables are components of the same kinds, which `build` makes.
    """

    nested: ClassVar[tuple[str, ...]] = ()
    unread: ClassVar[str | None] = None
    """The path to the code in whose place this is, where a command only looks; `given` are its keys."""
    given: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_silent_conversion(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields.get(info.field_name or "")
        return value if field is None else _checked(value, leaf_types(field.annotation))


def leaf_types(annotation: Any) -> set[Any]:
    """Return the scalar types an annotation mentions: `tuple[float, ...] | None` -> {float, NoneType}; literals by
    type.
    """
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return {type(choice) for choice in typing.get_args(annotation)}
    if origin is typing.Annotated:
        return leaf_types(typing.get_args(annotation)[0])
    if origin is None:
        return {annotation}
    if origin in (typing.Union, types.UnionType, tuple, list, set, frozenset):
        return set().union(*(leaf_types(inner) for inner in typing.get_args(annotation) if inner is not Ellipsis))
    return {origin}


LARGEST, SMALLEST = 1e38, 1e-38
"""Numbers beyond these are infinite, or 0, in float32."""


def _checked(value: Any, allowed: set[Any]) -> Any:
    """Return `value` if pydantic would not change the type of a scalar in it. Raises ValueError, which pydantic
    reports.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(_checked(item, allowed) for item in value) if type(value) in (list, tuple) else value
    if allowed & {int, float, bool, str}:
        _refuse_extremes(value)
    numbers = allowed & {int, float}
    if isinstance(value, bool) and numbers and bool not in allowed:
        raise ValueError("expected a number, not true or false")
    if isinstance(value, int | float) and not isinstance(value, bool) and bool in allowed and not numbers:
        raise ValueError("expected true or false")
    if isinstance(value, str) and allowed & {int, float, bool} and not allowed & {str, Path, object, Any}:
        return _number_in_disguise(value, allowed)
    return value


def refuse_extremes_in(value: Any, depth: int = 0) -> None:
    """Refuse values in a table with free names that the machine cannot hold, at any depth. Raises ValueError."""
    inner = (
        [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    for each in inner if depth < 100 else ():
        _refuse_extremes(each)
        refuse_extremes_in(each, depth + 1)


def _refuse_extremes(value: Any) -> None:
    """Raises ValueError for values that the machine cannot hold: numbers beyond 64 bits or float32, and strings with
    NUL or lone surrogates."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("should be a whole number within 64 bits")
    if isinstance(value, float) and math.isfinite(value) and value and not SMALLEST <= abs(value) <= LARGEST:
        raise ValueError(f"should be 0, or between {SMALLEST:g} and {LARGEST:g} in size")
    if isinstance(value, str):
        if "\x00" in value:
            raise ValueError("should be text without the character NUL")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("should be text that UTF-8 can hold, without halves of characters")


def _number_in_disguise(text: str, allowed: set[Any]) -> float | None:
    """Return the number that YAML reads as a string (`1e-6`), or None for `"none"`. Raises ValueError for anything
    else.
    """
    if text == "none" and type(None) in allowed:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if float in allowed and math.isfinite(number) and "e" in text.lower() and "_" not in text:
        return number
    expected = "a number" if allowed & {int, float} else "true or false"
    raise ValueError(f"expected {expected}, not a string")


def build(
    settings: Mapping[str, Any] | Component,
    kinds: Mapping[str, type[Component]],
    where: str,
    default_kind: str | None = None,
    base: Path | None = None,
) -> Component:
    """Return the component that a table of settings describes; a component is returned as it is.

    `kind` names a class of `kinds`, or one by path (`module:Name`, `file.py:Name` relative to `base`); without
    it `default_kind` is meant, or the only kind there is. `where` is the table's name in messages.

    Raises ConfigError: unknown kind or key (with the nearest name), a value of the wrong type or range.
    """
    if isinstance(settings, Component):
        return settings
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"{where}: expected a table of settings, got {shown(settings)}{_key_meant(where, settings, kinds)}"
        )
    values = dict(settings)
    kind = values.pop("kind", default_kind or (next(iter(kinds)) if len(kinds) == 1 else None))
    if looking() and isinstance(kind, str) and ":" in kind:
        return _unread(kind, values, kinds)
    cls = component_class(kind, kinds, where, base)
    for key in (key for key in cls.nested if values.get(key) is not None):
        inner = {"kind": values[key]} if isinstance(values[key], str) else values[key]
        values[key] = build(inner, kinds, f"{where}.{key}", base=base)
    problems = _of_other_kinds(values.keys() - cls.model_fields.keys(), kinds, where, kind)
    try:
        component = validated(cls, {key: value for key, value in values.items() if key not in problems}, where)
    except ConfigError as error:
        problems[""] = str(error)
    if problems:
        raise ConfigError("\n".join(problems.values()))
    return component


def as_written(
    settings: Mapping[str, Any] | None, kinds: Mapping[str, type[Component]], default_kind: str
) -> Component | None:
    """Return the component of a table of a resolved configuration, for what it states of itself; no code is imported.

    None: it is one of the user's, or a version of oncurve that has other keys wrote the table.
    """
    with only_looking():
        try:
            component = build(settings or {}, kinds, "", default_kind)
        except ConfigError:
            return None
    return None if any(part.unread for part in (component, *nested_in(component))) else component


def _unread(kind: str, values: Mapping[str, Any], kinds: Mapping[str, type[Component]]) -> Component:
    """Return a built-in kind in the place of code that is not imported, with the values of keys that all kinds have."""
    stated = {"unread": kind, "given": MappingProxyType(dict(values))}
    known = {key: value for key, value in values.items() if all(key in cls.model_fields for cls in kinds.values())}
    for cls in kinds.values():
        with suppress(ValidationError):  # it has keys without a default
            unknown = {"verifies": None} if hasattr(cls, "verifies") else {}
            stands_in: type[Component] = type(kind.rpartition(":")[2], (cls,), stated | unknown)
            return stands_in(**known)
    raise ConfigError(f"{kind} is code, and this command runs none")


def _of_other_kinds(
    unknown: Iterable[str], kinds: Mapping[str, type[Component]], where: str, kind: Any
) -> dict[str, str]:
    """Return the error for each of the unknown keys that other kinds have."""
    found = {}
    for key in sorted(unknown):
        if owners := [name for name, cls in kinds.items() if key in cls.model_fields]:
            meant = f"set {where}.kind to {' or '.join(owners)}, or leave the key out"
            found[key] = f"{where}.{key}: unknown key of the kind {shown(kind)}; {meant}"
    return found


def _key_meant(where: str, value: Any, kinds: Mapping[str, type[Component]]) -> str:
    """Return the key of the table for which a value was given in place of the table, as a suggestion; "" for none."""
    if not isinstance(value, str) or not value:
        return ""
    key = "kind" if value in kinds or ":" in value else "path"
    if key == "path" and not any("path" in cls.model_fields for cls in kinds.values()):
        near = difflib.get_close_matches(value, kinds, n=1)
        return f"; did you mean {where}.kind={near[0]}?" if near else ""
    return f"; did you mean {where}.{key}={shlex.quote(value)}?"


def nested_in(component: object) -> list[Component]:
    """Return the components that a component has under its `nested` keys."""
    return [part for key in getattr(component, "nested", ()) if (part := getattr(component, key)) is not None]


def component_class(
    kind: Any, kinds: Mapping[str, type[Component]], where: str, base: Path | None = None
) -> type[Component]:
    """Return the class that `kind` names, a name of `kinds` or a path to a class. Raises ConfigError where there is
    none.
    """
    names = ", ".join(kinds)
    if kind is None:
        raise ConfigError(f"{where}.kind: missing; choose one of: {names}")
    if not isinstance(kind, str):
        raise ConfigError(f"{where}.kind: expected a name, got {shown(kind)}; choose one of: {names}")
    if ":" not in kind:
        if kind not in kinds:
            near = kind_for(where, kind) or suggest(kind, kinds) or ";"
            raise ConfigError(
                f"{where}.kind: unknown kind {shown(kind)}{near} choose one of: {names}, or 'module:Name'"
            )
        return kinds[kind]
    try:
        found = locate(kind, base)
    except ConfigError as error:
        raise ConfigError(f"{where}.kind: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Component)):
        of_functions = [name for name, cls in kinds.items() if callable(found) and "function" in cls.model_fields]
        meant = f"; write {where}.kind={of_functions[0]} {where}.path={shlex.quote(kind)}" if of_functions else ""
        what = "a class that is not" if isinstance(found, type) else f"a {type(found).__name__}, and no class"
        raise ConfigError(
            f"{where}.kind: {kind} is {what} derived from oncurve.components.Component, whose fields are the settings "
            f"of a kind (docs/extending.md){meant}"
        )
    return found


def validated(cls: type[Settings], values: Mapping[str, Any], where: str) -> Settings:
    """Return `cls(**values)`, with all validation errors as one ConfigError. `where` is "" for a whole file."""
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(explain_validation(error, where, cls)) from error


def kind_of(component: object, kinds: Mapping[str, type[Component]]) -> str:
    """Return the `kind` that `build` would need to make this component again: a name of `kinds`, or a path to its
    class.
    """
    cls = type(component)
    if isinstance(component, Component) and component.unread is not None:
        return component.unread
    for name, kind in kinds.items():
        if kind is cls:
            return name
    module = sys.modules.get(cls.__module__)
    if cls.__module__.startswith(FILE_MODULE) and module is not None:
        return f"{module.__file__}:{cls.__qualname__}"
    return f"{cls.__module__}:{cls.__qualname__}"


def misstated(what: str, stated: object, known: frozenset[str]) -> str | None:
    """Return what is wrong with a component's statement `what`, which must be a set of `known` names, or None."""
    if isinstance(stated, frozenset | set) and all(isinstance(name, str) for name in stated):
        unknown = sorted(stated - known)
        if not unknown:
            return None
        said = f"there is no {unknown[0]!r}{suggest(unknown[0], known)}"
    else:
        said = f"it is {stated!r}"
    return f"{what} must be a frozenset of names among {', '.join(sorted(known))}; {said}"


def explain_validation(error: ValidationError, where: str, cls: type[BaseModel] | None = None) -> str:
    """Return the errors, one line per key: `section.key: error, value`; unknown keys with the nearest name."""
    lines: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        *above, last = detail["loc"] or ("",)
        typed = detail["type"] == "extra_forbidden"  # an unknown key may look like anything
        names = [str(part) for part in above if not _is_union_branch(part)]
        names += [str(last)] if detail["loc"] and (typed or not _is_union_branch(last)) else []
        place = ".".join(([where] if where else []) + names) or "settings"
        lines.setdefault(place, []).append(_complaint(detail, names, cls, place))
    return "\n".join(f"{place}: {_either(said)}" for place, said in lines.items())


def _either(complaints: Sequence[str]) -> str:
    """Return the complaints about one value, of each branch of its type: `expected A or a list, got 1`."""
    *others, last = dict.fromkeys(complaints)
    got = last[last.rfind(", got ") :].partition(";")[0] if ", got " in last else ""
    if not others or not got or not all(one.endswith(got) for one in others):
        return " or ".join([*others, last])
    return " or ".join([*(one.removesuffix(got) for one in others), last.removeprefix("expected ")])


_SUBJECT = re.compile(r"^(Input|String|Tuple|List|Dictionary|Value|Data) (?=should)")


def _is_union_branch(part: Any) -> bool:
    """Pydantic names the branch of a union in an error's location (`int`, `list[str]`); no key has such a name."""
    return isinstance(part, str) and (part in {"int", "float", "str", "bool", "callable", "none"} or "[" in part)


def _complaint(detail: Any, names: list[str], cls: type[BaseModel] | None, place: str) -> str:
    given, kind, context = detail.get("input"), detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        keys = _keys_at(cls, names[:-1])
        near = nearest(names[-1], keys)
        meant = f"; the keys here are: {', '.join(keys) or 'none'}"
        if near is not None:
            meant = f"; did you mean {place.removesuffix(names[-1]) + near!r}?"
        return f"unknown key{_other_tools_word(place, keys) or meant}"
    if kind == "missing":
        return "missing; it has no default"
    if kind == "literal_error":
        choices = str(context["expected"])
        options = [word.strip("' ") for word in choices.replace(" or ", ", ").split(",")]
        return f"expected {choices}, got {shown(given)}{suggest(given, options) if isinstance(given, str) else ''}"
    if kind in ("tuple_type", "list_type"):
        return f"expected a list, got {shown(given)}{_as_list(given, place)}"
    message = str(context["error"]) if "error" in context else _SUBJECT.sub("", detail["msg"])
    if isinstance(given, Mapping) and kind == "value_error":
        return message  # a whole table's check: its message names the keys
    return f"{message}, got {shown(given)}"


def _as_list(given: Any, place: str) -> str:
    """Return how to write a value as a list: a shell takes the quotes of a list's strings unless all of it is
    quoted.
    """
    if isinstance(given, str) and given.startswith("["):
        return f'; in a shell write \'{place}=["…", "…"]\', with all of its quotes'
    huge = isinstance(given, int) and abs(given) > 1e60  # which may have no text
    if huge or not isinstance(given, str | int | float) or len(str(given)) >= 80:
        return ""
    items = json.dumps(given.split() if isinstance(given, str) and place.endswith("command") else [given])
    return f"; write {items}, in a shell {shlex.quote(f'{place}={items}')}"


def _other_tools_word(place: str, keys: list[str]) -> str:
    """Return the setting here for another tool's name at `place`, in the same table if that has such a key; else
    `""`.
    """
    word = word_for(place)
    if word is None:
        return ""
    table = place.rpartition(".")[0]
    here = [key.rpartition(".")[2] in keys for key in word.keys]
    meant = [f"{table}.{key.rpartition('.')[2]}" if at else key for key, at in zip(word.keys, here, strict=True)]
    return f"; did you mean {word._replace(keys=tuple(meant))}?" if meant else f"; {word}"


def _keys_at(cls: type[BaseModel] | None, names: list[str]) -> list[str]:
    """Return the keys of the table at `names` below `cls`, by its nested models."""
    for name in names:
        field = cls.model_fields.get(name) if cls is not None else None
        leaves = leaf_types(field.annotation) if field is not None else set()
        cls = next((leaf for leaf in leaves if isinstance(leaf, type) and issubclass(leaf, BaseModel)), None)
    return list(cls.model_fields) if cls is not None else []
