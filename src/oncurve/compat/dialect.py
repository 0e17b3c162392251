"""The settings of another tool as data, and their translation into settings of oncurve.

A dialect is a table with one `Key` per setting of the tool: what it is here, how its value changes, or why it has no
meaning or is refused. `Dialect.translate` reads the table; the printed recipe and the page "Coming from another tool"
are made from it too, so they cannot disagree. Every key that is given ends in one line of the `Translation`.

Covered: names, types, values that depend on each other, the tool's own defaults. Not covered: where the words come
from (a command line, a file, a Python call), which each dialect reads in its own room.

Tables of another tool's settings as TOML files, read to `Key`s.

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
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from oncurve.base.errors import ConfigError, noted, refuse, shown, suggest

Fate = Literal["translated", "no meaning", "refused"]

LONGEST = 120
"""The most characters of a value that is quoted."""

MANY = "rewards"
"""The setting that is a list of tables: what several keys give is put together."""


@dataclass(frozen=True)
class Said:
    """A value that was given, and where it stands, as messages call it: `line 12`, `--verl`, `GRPOConfig`."""

    value: Any
    place: str = ""


class Values:
    """The values that were given, over the tool's defaults: `values["trainer.nnodes"]`; None for a key with neither.

    A key outside the dialect's table is a KeyError, so that a misspelt table shows in the first test.
    """

    def __init__(self, keys: Mapping[str, Key], said: Mapping[str, Said]) -> None:
        self.keys_of, self.said = keys, said

    def __getitem__(self, name: str) -> Any:
        return self.said[name].value if name in self.said else self.keys_of[name].default

    def given(self, name: str) -> bool:
        """Return whether the user gave this key. Raises KeyError: it is not in the table."""
        return self.keys_of[name].theirs in self.said


Make = Callable[[Any, Values], Mapping[str, Any]]
"""`(value, values) -> {our setting: our value}`. Raises ConfigError (without the key's name) for what cannot be."""


@dataclass(frozen=True)
class Key:
    """One setting of another tool. Example: `Key("trainer.save_freq", ("checkpoint.every",), make=never_is_zero)`.

    theirs    its name, with its sections; `a.b.*` is every key of the section a.b that the table lacks
    ours      the settings here that it becomes; none: it has no meaning here, or is refused
    note      how its value differs; why it has no meaning; what to do in place of it
    make      the settings of a value, where it is not the same value under another name
    default   the tool's default; `applied` says whether a run that does not give the key gets it
    applied   True where the tool's default is not oncurve's
    types     the types of its values; none: any. A whole number is a float, True is no number
    harmless  of a refused key: the values that change nothing, and so are no error
    """

    theirs: str
    ours: tuple[str, ...] = ()
    note: str = ""
    make: Make | None = None
    default: Any = None
    applied: bool = False
    types: tuple[type, ...] = ()
    refused: bool = False
    harmless: tuple[Any, ...] = ()

    @property
    def fate(self) -> Fate:
        """The fate of the key."""
        return "refused" if self.refused else "translated" if self.ours else "no meaning"

    def check(self, value: Any) -> None:
        """Raise ConfigError: the key is refused, or the value is of a wrong type."""
        if self.refused and not any(value == each and type(value) is type(each) for each in self.harmless):
            raise ConfigError(f"not available here: {self.note}")
        if self.types and not any(_is(value, kind) for kind in self.types):
            names = " or ".join(_TYPE_NAMES.get(kind, kind.__name__) for kind in self.types)
            raise ConfigError(f"expected {names}, got {shown(value)}")

    def settings(self, value: Any, values: Values) -> dict[str, Any]:
        """Our settings for a checked value. Raises ConfigError: a value that cannot be."""
        return dict(self.make(value, values)) if self.make is not None else dict.fromkeys(self.ours, value)


_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", list: "a list"}
_TYPE_NAMES |= {dict: "a table", type(None): "null"}


def _is(value: Any, kind: type) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


@dataclass(frozen=True)
class Line:
    """The result of one key: `settings` is empty where it has no meaning. `given`: else it is the tool's default."""

    key: Key
    value: Any
    given: bool
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The tool's key and its value, as messages and recipes quote them."""
        value = self.value if isinstance(self.value, str) else json.dumps(self.value, default=str)
        value = value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
        return f"{self.key.theirs}={value}" if self.given else f"default of {self.key.theirs}"


@dataclass(frozen=True)
class Translation:
    """The settings of a run in another tool's words."""

    tool: str
    lines: tuple[Line, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """Nested tables, as `oncurve.config.load_config` takes them; of rewards a list."""
        tables: dict[str, Any] = {}
        for line in self.lines:
            for name, value in line.settings.items():
                section, _, key = name.partition(".")
                if section == MANY:
                    tables.setdefault(MANY, []).extend(value)
                else:
                    tables.setdefault(section, {})[key] = value
        return tables

    def given(self, fate: Fate | None = None) -> list[Line]:
        """Return the lines of keys that were given, of one fate or of any."""
        return [line for line in self.lines if line.given and (fate is None or line.key.fate == fate)]

    def explained(self, complaint: str) -> str:
        """Return a complaint of `load_config` with the tool's keys at each line that names a setting of theirs."""
        return "\n".join(map(self._explained, complaint.split("\n")))

    def _explained(self, text: str) -> str:
        settings = {name: line for line in self.lines for name in line.settings}
        named = {name: line for name, line in settings.items() if name != MANY and _names(text, name)}
        if text.startswith(f"{MANY}.") and MANY in settings:
            named[MANY] = settings[MANY]
        sources = dict.fromkeys(line.source for line in named.values())
        return f"{text.removesuffix(' (the arguments)')} ({self.tool}: {', '.join(sources)})" if sources else text

    def counted(self) -> str:
        """For example: `42 keys of verl: 31 translated, 11 without meaning here; 4 defaults of verl that differ`."""
        whole, moved = len(self.given()), len(self.given("translated"))
        rest = f"; {count} defaults of {self.tool} that differ" if (count := len(self.lines) - whole) else ""
        return f"{whole} keys of {self.tool}: {moved} translated, {whole - moved} without meaning here{rest}"


@dataclass(frozen=True)
class Dialect:
    """A tool's settings. `tool` and `version` are how pages and messages call it; names in `keys` are unique."""

    tool: str
    version: str
    keys: tuple[Key, ...]

    @property
    def table(self) -> dict[str, Key]:
        """The keys by name."""
        return {key.theirs: key for key in self.keys}

    def table_for(self, names: Iterable[str]) -> dict[str, Key]:
        """Return the keys by name, with a key of its own for each of `names` that a section `a.b.*` stands for."""
        table = self.table
        for name in names:
            parts = name.split(".")
            sections = (table.get(".".join([*parts[:end], "*"])) for end in range(len(parts), 0, -1))
            section = next((each for each in sections if each is not None), None)
            if name not in table and section is not None:
                table[name] = replace(section, theirs=name)
        return table

    def translate(self, said: Mapping[str, Said]) -> Translation:
        """Return the settings here for what was given, over the tool's defaults that differ from oncurve's.

        Raises ConfigError with one line for each key that is unknown, refused, of a wrong type, or that contradicts
        another; each with its place.
        """
        table, problems = self.table_for(said), list[str]()
        for name, each in said.items():  # all of them before any `make`, which may read the values of other keys
            if name not in table:
                problems.append(self._unknown(name, each, table))
                continue
            with noted(problems, f"{placed(name, each)}: "):
                table[name].check(each.value)
        refuse(problems)
        values, lines, unsaid = Values(table, said), list[Line](), list[str]()
        for key in table.values():
            if key.theirs in said or key.applied:
                told = problems if key.theirs in said else unsaid  # a default that reads a wrong value is not at fault
                with noted(told, f"{placed(key.theirs, said.get(key.theirs))}: "):
                    made = key.settings(values[key.theirs], values)
                    lines.append(Line(key, values[key.theirs], key.theirs in said, made))
        lines, contradictions = _settled(lines)
        refuse([*(problems or unsaid), *contradictions])
        return Translation(self.tool, tuple(lines))

    def _unknown(self, name: str, said: Said, table: Mapping[str, Key]) -> str:
        endings = [key for key in table if key.rpartition(".")[2] == name.rpartition(".")[2]]
        near = f"; did you mean {endings[0]!r}?" if len(endings) == 1 else suggest(name, table)
        return f"{placed(name, said)}: {self.tool} {self.version} has no such setting{near}"


def _names(text: str, setting: str) -> bool:
    """Return whether a text has a setting's whole name in it."""
    return re.search(rf"(?<![\w.]){re.escape(setting)}(?!\w|\.\w)", text) is not None


def placed(name: str, said: Said | None = None) -> str:
    """Return a key as messages call it, after its place."""
    plain = name if name.isprintable() and len(name) <= 100 else shown(name)
    return plain if said is None or not said.place else f"{said.place}: {plain}"


def _settled(lines: Sequence[Line]) -> tuple[list[Line], list[str]]:
    """Return the lines with one value per setting: a given key wins over a default; two given ones must agree."""
    owner, problems = dict[str, Line](), list[str]()
    for line in sorted(lines, key=lambda line: not line.given):
        for name, value in line.settings.items():
            first = owner.setdefault(name, line)
            if name != MANY and line.given and first.settings[name] != value:
                problems.append(
                    f"{line.key.theirs}: makes {name} {shown(value)}, and {first.key.theirs} makes it "
                    f"{shown(first.settings[name])}; leave one of them out"
                )
    kept = list[Line]()
    for line in lines:
        mine = {name: value for name, value in line.settings.items() if name == MANY or owner[name] is line}
        if line.given or mine:
            kept.append(Line(line.key, line.value, line.given, mine))
    return kept, problems


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
