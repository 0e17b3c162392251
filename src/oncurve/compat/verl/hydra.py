"""Hydra's words for settings: `key=value`, `+key=value`, `++key=value`, `~key`.

A value is null, true, false, a number, a quoted or plain text, a list `[1, 2]` or a table `{a: 1}`; `${key}` in it is
resolved later (`resolved`). A word means here what it means to `python3 -m verl.trainer.main_ppo`.

Covered: the grammar of values. Not covered: sweeps (`a,b`), functions (`range(3)`) and config groups (`a@b=c`), which
are errors.

`${...}` in values: other settings, variables of the environment, and `oc.select`, as OmegaConf resolves them.

${trainer.project_name}      the value of that setting; of one that was not given verl's default
${.name} ${..name}           next to this setting, one section further up
${oc.env:HOME}               a variable of the environment; ${oc.env:NAME,default}
${oc.select:a.b,default}     the setting, or the default where there is none
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oncurve.base.errors import ConfigError, shown

DEEPEST = 20
"""Levels of lists and tables in a value."""

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_INTEGER = re.compile(r"[+-]?[0-9](_?[0-9])*")
_FLOAT = re.compile(r"[+-]?([0-9](_?[0-9])*)?\.?([0-9](_?[0-9])*)?([eE][+-]?[0-9]+)?")
_WORDS = {"null": None, "true": True, "false": False, "inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_CALL = re.compile(r"\w+\(.*\)")


@dataclass(frozen=True)
class Assignment:
    """A key without Hydra's marks, its value, and where it stands. `mark`: `+`, `++`, `~` or nothing."""

    key: str
    value: Any
    place: str = ""
    mark: str = ""


def is_assignment(word: str) -> bool:
    """Return whether a word of a command line sets or removes a key."""
    return "=" in word or word.startswith("~")


def assignment(word: str, place: str = "") -> Assignment:
    """Return the assignment of one word. Raises ConfigError: it is none, or its value cannot be read."""
    found = re.match(r"\+\+|\+|~", word)
    mark = found[0] if found is not None else ""
    key, equals, text = word[len(mark) :].partition("=")
    key = key.strip()
    where = f"{place}: " if place else ""
    if "@" in key or "/" in key:
        raise ConfigError(f"{where}{shown(word)}: config groups are files of verl; give the settings themselves")
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{where}{shown(word)}: expected key=value, like algorithm.adv_estimator=grpo")
    if mark == "~":
        return Assignment(key, None, place, mark)
    if not equals:
        raise ConfigError(f"{where}{shown(word)}: has no value; write {key}=VALUE")
    try:
        return Assignment(key, value_of(text), place, mark)
    except ConfigError as error:
        raise ConfigError(f"{where}{key}: {error}") from None


def value_of(text: str) -> Any:
    """Return the value of a text by Hydra's grammar. Raises ConfigError with what is wrong."""
    reader = _Reader(text)
    value = reader.value(0)
    reader.blanks()
    if reader.at < len(text):
        if text[reader.at] == ",":
            raise ConfigError(f"{shown(text)} is a sweep over several values; a list is written [{text}]")
        raise ConfigError(f"{shown(text)}: unexpected {shown(text[reader.at :])}; quote a text with such characters")
    return value


def plain(text: str) -> Any:
    """Return the value of an unquoted text: null, true, false, a number, else the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text) and len(text) <= 4000:
        return int(text)
    if _FLOAT.fullmatch(text) and re.search("[0-9]", text):
        try:
            return float(text)
        except ValueError:
            return text
    return text


class _Reader:
    """Reads one value from `at` on."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def value(self, depth: int, ends: str = "") -> Any:
        """Read a value in Hydra's words: a list, a table, a quoted text or a plain one."""
        if depth > DEEPEST:
            raise ConfigError(f"nested more than {DEEPEST} levels deep")
        self.blanks()
        first = self.text[self.at : self.at + 1]
        if first in ("'", '"') and first:
            return self.quoted(first)
        if first == "[":
            return self.items("]", lambda: self.value(depth + 1, ",]"))
        if first == "{":
            return dict(self.items("}", lambda: self.pair(depth)))
        return self.unquoted(ends or ",")

    def blanks(self) -> None:
        """Skip blanks."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def quoted(self, quote: str) -> str:
        """Read the text up to the closing quote; a backslash before a quote is left out."""
        end, found = self.at + 1, list[str]()
        while end < len(self.text) and self.text[end] != quote:
            if self.text[end] == "\\" and self.text[end + 1 : end + 2] in (quote, "\\"):
                end += 1
            found.append(self.text[end : end + 1])
            end += 1
        if end >= len(self.text):
            raise ConfigError(f"{shown(self.text)}: the quote {quote} is never closed")
        self.at = end + 1
        return "".join(found)

    def items(self, closing: str, item: Any) -> list[Any]:
        """Read the items between brackets, separated by commas."""
        found = list[Any]()
        self.at += 1
        while True:
            self.blanks()
            if self.text[self.at : self.at + 1] == closing and not found:
                self.at += 1
                return found
            found.append(item())
            self.blanks()
            mark = self.text[self.at : self.at + 1]
            self.at += 1
            if mark == closing:
                return found
            if mark != ",":
                raise ConfigError(f"{shown(self.text)}: expected , or {closing}" + (f", got {mark}" if mark else ""))

    def pair(self, depth: int) -> tuple[str, Any]:
        """Read a key of a table, and its value."""
        self.blanks()
        quote = self.text[self.at : self.at + 1]
        name = self.quoted(quote) if quote in ("'", '"') and quote else self.unquoted(":,}")
        self.blanks()
        if self.text[self.at : self.at + 1] != ":":
            raise ConfigError(f"{shown(self.text)}: a table is written {{name: value}}")
        self.at += 1
        return str(name), self.value(depth + 1, ",}")

    def unquoted(self, ends: str) -> Any:
        """Read the value of a text without quotes, up to one of `ends` outside of `${...}`."""
        start, open_braces = self.at, 0
        while self.at < len(self.text):
            if self.text.startswith("${", self.at):
                open_braces += 1
                self.at += 2
                continue
            letter = self.text[self.at]
            if open_braces and letter in "{}":
                open_braces += 1 if letter == "{" else -1
            elif not open_braces and letter in ends:
                break
            elif not open_braces and letter in "[]{}\"'":
                raise ConfigError(f"{shown(self.text)}: unexpected {letter}; quote a text with such characters")
            self.at += 1
        if open_braces:
            raise ConfigError(f"{shown(self.text)}: ${{ is never closed")
        found = self.text[start : self.at].strip()
        if _CALL.fullmatch(found):
            raise ConfigError(f"{shown(found)}: functions of Hydra are not called; write the value")
        return plain(found)


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
