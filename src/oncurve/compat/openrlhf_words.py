"""OpenRLHF's flags, as words or from a shell script, and their translation. Nothing is executed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Key, Said, Translation
from oncurve.compat.openrlhf import DIALECT
from oncurve.compat.openrlhf_names import RENAMED
from oncurve.compat.shell import Program, Word, find_call

PROGRAM = Program(
    re.compile(r"\S* (\S*/)?(openrlhf\.cli\.train_ppo(_ray)?|train_ppo(_ray)?\.py)"),
    "python3 -m openrlhf.cli.train_ppo_ray --flag value ...",
)
THRESHOLD = "algo.advantage.is_correction_threshold"
SHORTHANDS: dict[str, tuple[tuple[str, Any], ...]] = {
    "use_kl_estimator_k3": (("algo.kl.estimator", "k3"),),
    "use_icepop": (("algo.advantage.is_correction_type", "icepop"),),
}
"""Flags of earlier releases that stand for others with a value."""


def from_openrlhf(words: Sequence[str]) -> Translation:
    """The settings of flags, or of a script whose call has them, with flags after it that win.

    Raises ConfigError: no such script or call, a flag that is unknown, refused, without its value or of a wrong type.
    """
    found = [Word(word, 0) for word in words]
    if words and not words[0].startswith("-"):
        found = [*_of_script(Path(words[0])), *found[1:]]
    if not found:
        raise ConfigError("give OpenRLHF's flags, or the shell script that has them")
    table, said, problems = DIALECT.table, dict[str, Said](), list[str]()
    for flag, values in _flags(found):
        try:
            said.update(_said(flag, values, table))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return DIALECT.translate(said)


def _of_script(path: Path) -> list[Word]:
    try:
        return find_call(path.read_text(encoding="utf-8"), PROGRAM, os.environ, path=str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{shown(str(path))}: {reason}; name a shell script, or write the flags") from error


def _flags(words: Sequence[Word]) -> list[tuple[Word, list[Word]]]:
    """Each flag with the words up to the next one; of a flag that is given several times the last, as in argparse."""
    flags: dict[str, tuple[Word, list[Word]]] = {}
    stray = list[Word]()
    values = stray
    for word in words:
        name, equals, value = word.text.removeprefix("--").partition("=")
        if word.text.startswith("--"):
            values = [replace(word, text=value)] if equals else []
            name = RENAMED.get(name, name)
            flags[name] = (Word(name, word.line, "" if equals else word.why), values)
        else:
            values.append(word)
    if stray:
        raise ConfigError(f"{_place(stray[0])}{shown(stray[0].known())}: expected a flag, like --actor.adam.lr 1e-6")
    return list(flags.values())


def _said(flag: Word, values: list[Word], table: dict[str, Key]) -> dict[str, Said]:
    name, place = flag.known(), _place(flag).removesuffix(": ")
    if name in SHORTHANDS and not values:
        return {setting: Said(value, place) for setting, value in SHORTHANDS[name]}
    if name not in table:
        plain = name if name.isprintable() and len(name) <= 100 else shown(name)
        near = suggest(name, [*table, *RENAMED, *SHORTHANDS])
        raise ConfigError(f"{_place(flag)}{plain}: {DIALECT.tool} {DIALECT.version} has no such flag{near}")
    unknown = next((word for word in values if word.why), None)
    if unknown is not None:
        raise ConfigError(f"{_place(unknown)}{name}: {unknown.text}: {unknown.why}")
    try:
        return {name: Said(_value(table[name].types, [word.text for word in values], name), place)}
    except ConfigError as error:
        raise ConfigError(f"{_place(flag)}{name}: {error}") from None


def _value(types: tuple[type, ...], texts: list[str], name: str) -> Any:
    """The value of a flag as argparse reads it. Raises ConfigError: too few words, too many, or no number."""
    if types == (list,):
        few = 1 if name == THRESHOLD else 2
        if not few <= len(texts) <= 2:
            raise ConfigError(f"expected two numbers, got {len(texts)} words")
        return [_number(float, text) for text in texts]
    if list in types:
        return texts[0] if texts in (["all-linear"], ["all_linear"]) else texts
    if types == (bool,):
        if texts:
            raise ConfigError(f"a flag without a value, got {shown(texts[0])}")
        return True
    if len(texts) != 1:
        raise ConfigError(f"expected one value, got {len(texts)} words")
    return texts[0] if types == (str,) else _number(types[0], texts[0])


def _number(kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"expected a {'whole ' if kind is int else ''}number, got {shown(text)}") from None


def _place(word: Word) -> str:
    return f"line {word.line}: " if word.line else ""
