"""Tables of another tool's settings as TOML files, read to `Key`s.

    [[keys]]
    theirs = "trainer.save_freq"
    ours = ["checkpoint.every"]
    note = "-1 is 0: a checkpoint when the run ends or is stopped"
    make = "never_is_zero"
    default = -1
    applied = true
    types = "whole"

The fields are those of `Key`, but for these:

theirs    a name, or several names that share the row, separated by blanks; or a table of names with their defaults
section   sections that each of the names stands in, separated by blanks
types     `flag`, `whole`, `number`, `text`, `list`, `table`, `null`; several as "number or null"
make      the name of a function `(value, values)`. It returns settings as a table, a value for the first setting of
          `ours`, or None for no setting. `FUNCTIONS` has those that every table can name
of        an argument of the function by this name, such as another key; of `where` several keys that are on, so neither
          empty nor a number below 1, or that have one of the words in `key=one|two`
map       in place of `make`: for each word of the tool our value, or a table of settings; `{}`: no setting
not_here  for words of the tool without a counterpart, what to do

The text "null" stands for null in `harmless` and in a table of names. A row with neither `make` nor `map` has the same
value in both tools. Where `types` has null, null is no setting, unless `make` says otherwise. A refused row with a
table of names has these defaults and null as harmless values. A field that is misspelt, or a function that is missing,
is a ValueError that names the row.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Key, Make, Values

TYPES = {"flag": bool, "whole": int, "number": float, "text": str, "list": list, "table": dict, "null": type(None)}

Function = Callable[..., Any]

FUNCTIONS: dict[str, Function] = {
    "part": lambda value, values: None,
    "where": lambda value, values, of: value if all(_is_on(each, values) for each in of.split()) else None,
    "never_negative": lambda value, values: max(value, 0),
    "above_zero": lambda value, values: value if value > 0 else None,
}
"""The functions of every table: `part`, of a key that the function of another one reads; `where`, with `of`."""


def _is_on(key: str, values: Values) -> bool:
    name, _, words = key.partition("=")
    value = values[name]
    if words:
        return value in words.split("|")
    return value > 0 if isinstance(value, (int, float)) else bool(value)


def keys_of(file: Path, functions: Mapping[str, Function]) -> tuple[Key, ...]:
    """Return the keys of the rows of `file`, whose functions are looked up in `functions`, such as `vars(module)`."""
    found, functions = list[Key](), FUNCTIONS | dict(functions)
    for row in tomllib.loads(file.read_text(encoding="utf-8"))["keys"]:
        try:
            found += _keys_of_row(functions, **row)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file.name}: {row.get('theirs')}: {error!r}") from error
    return tuple(found)


def meaning(value: Any, words: Mapping[str, Any], not_here: Mapping[str, str] | None = None) -> Any:
    """Return our value for a word of another tool, or for a flag. Raises ConfigError: it has none, or is no word."""
    word = value if isinstance(value, str) else json.dumps(value, default=str)
    if word in (not_here or {}):
        raise ConfigError(f"{word}: not available here: {(not_here or {})[word]}")
    if word not in words:
        known = [name for name in (*words, *(not_here or {})) if name]
        raise ConfigError(f"expected one of {', '.join(known)}, got {shown(value)}{suggest(str(value), known)}")
    return words[word]


def _keys_of_row(
    functions: Mapping[str, Function],
    *,
    theirs: str | dict[str, Any],
    section: str = "",
    ours: list[str] | None = None,
    types: str = "",
    make: str = "",
    of: str = "",
    map: dict[str, Any] | None = None,
    not_here: dict[str, str] | None = None,
    default: Any = None,
    harmless: list[Any] | None = None,
    **rest: Any,
) -> list[Key]:
    settings, kinds = tuple(ours or ()), tuple(TYPES[name] for name in types.split(" or ") if name)
    function: Make | None = None
    if make:
        function = _made(partial(functions[make], of=of) if of else functions[make], settings)
    elif map is not None:
        null = type(None) in kinds
        function = _made(lambda value, _: None if null and value is None else meaning(value, map, not_here), settings)
    elif type(None) in kinds:
        function = _made(lambda value, _: value, settings)
    defaults = dict.fromkeys(theirs.split(), default) if isinstance(theirs, str) else theirs
    found = list[Key]()
    for place in section.split() or [""]:
        for name, each in defaults.items():
            value = _null(each)
            equal = [_null(other) for other in harmless or ()]
            if isinstance(theirs, dict) and rest.get("refused"):
                equal += [*_equal(value), None]
            name = f"{place}.{name}" if place else name
            found.append(Key(name, settings, make=function, default=value, types=kinds, harmless=tuple(equal), **rest))
    return found


def _made(function: Function, settings: tuple[str, ...]) -> Make:
    def make(value: Any, values: Values) -> Mapping[str, Any]:
        made = function(value, values)
        if isinstance(made, Mapping):
            return made
        return {} if made is None else {settings[0]: made}

    return make


def _null(value: Any) -> Any:
    return None if value == "null" else value


def _equal(value: Any) -> list[Any]:
    """Return `value`, and for a whole number its float, too; no entry for null, which is always harmless."""
    if value is None:
        return []
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)
    return [int(value), float(value)] if whole else [value]
