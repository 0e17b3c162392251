"""`${...}` in values: other settings, variables of the environment, and `oc.select`, as OmegaConf resolves them.

${trainer.project_name}      the value of that setting; of one that was not given verl's default
${.name} ${..name}           next to this setting, one section further up
${oc.env:HOME}               a variable of the environment; ${oc.env:NAME,default}
${oc.select:a.b,default}     the setting, or the default where there is none
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.verl.hydra import value_of

DEEPEST = 20

Lookup = Callable[[str], Any]
"""The value of a setting by its whole name, with its own `${...}`. Raises KeyError: there is none."""


def resolved(value: Any, key: str, lookup: Lookup, seen: tuple[str, ...] = ()) -> Any:
    """Return a value with its `${...}` filled in; one that is nothing else keeps the type of what it names.

    Raises ConfigError: a name that is not set, a circle, a resolver that is not known.
    """
    if isinstance(value, list):
        return [resolved(item, key, lookup, seen) for item in value]
    if isinstance(value, dict):
        return {name: resolved(item, key, lookup, seen) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    if len(seen) > DEEPEST:
        raise ConfigError(f"${{...}} refers to itself: {' -> '.join(seen[:4])}")
    text = value
    for _ in range(1000):
        start = text.rfind("${")  # nothing within the last one is to be filled in
        if start < 0:
            return text
        end = _closed(text, start)
        named = _named(text[start + 2 : end - 1].strip(), key, lookup, seen)
        if end - start == len(text):
            return named
        text = text[:start] + ("null" if named is None else str(named)) + text[end:]
    raise ConfigError(f"{shown(value)}: ${{...}} refers to itself")


def _closed(text: str, start: int) -> int:
    """Return where the `${` at `start` ends; braces of a table within it are counted. Raises ConfigError."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if text[at] == "}" and not depth:
            return at + 1
    raise ConfigError(f"{shown(text)}: ${{ is never closed")


def _named(inside: str, key: str, lookup: Lookup, seen: tuple[str, ...]) -> Any:
    resolver, colon, arguments = inside.partition(":")
    if colon:
        name, comma, default = arguments.partition(",")
        name = name.strip()
        if resolver == "oc.env":
            if name in os.environ:
                return os.environ[name]
            if comma:
                return value_of(default.strip())
            raise ConfigError(f"${{{inside}}}: the environment has no variable {name}; set it, or write its value")
        if resolver == "oc.select":
            try:
                return _of(name, key, lookup, seen)
            except KeyError:
                return value_of(default.strip()) if comma else None
        raise ConfigError(f"${{{inside}}}: the resolver {shown(resolver)} is not known; write its value")
    try:
        return _of(inside, key, lookup, seen)
    except KeyError:
        raise ConfigError(f"${{{inside}}}: no such setting is given; write its value") from None


def _of(name: str, key: str, lookup: Lookup, seen: tuple[str, ...]) -> Any:
    """Return the resolved value of a setting, by a name that may begin with dots. Raises KeyError, ConfigError."""
    dots = len(name) - len(name.lstrip("."))
    above = key.split(".")[: -dots or None] if dots else []
    whole = ".".join([*above, name.lstrip(".")])
    if whole in seen or whole == key:
        raise ConfigError(f"${{{name}}} refers to itself: {' -> '.join([*seen, key, whole])}")
    return resolved(lookup(whole), whole, lookup, (*seen, key))
