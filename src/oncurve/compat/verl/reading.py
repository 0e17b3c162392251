"""From words, a YAML file or a shell script to what was given: each of verl's settings with its value and place."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Said
from oncurve.compat.shell import Program, Word, find_call
from oncurve.compat.verl.hydra import Assignment, assignment, is_assignment
from oncurve.compat.verl.interpolation import resolved
from oncurve.compat.verl.table import DIALECT, OPEN
from oncurve.compat.verl.yaml_file import assignments_of, content

YAML = (".yaml", ".yml")
OWN_CONFIG = re.compile(r"ppo(_\w+)?_trainer(\.yaml)?")
PROGRAM = Program(
    re.compile(r"-m ([\w.]+\.)?main_\w+|\S* (\S*/)?main_\w+\.py"), "python3 -m verl.trainer.main_ppo key=value ..."
)
CONFIG_FLAGS = ("--config-path", "--config-name", "--config-dir", "-cp", "-cn", "-cd")


@dataclass(frozen=True)
class Reading:
    """What was given, by name, and notes on what of it does not count."""

    said: dict[str, Said]
    notes: tuple[str, ...] = ()


def read(words: Sequence[str]) -> Reading:
    """What the words of `--verl` give: a script or a YAML file, if the first one is a file, and assignments.

    Later ones win. Raises ConfigError, each line with its place: what cannot be read, or cannot be known.
    """
    if not words:
        raise ConfigError("--verl: name a script, a YAML file, or settings like algorithm.adv_estimator=grpo")
    notes = list[str]()
    flags, others = _flags([Word(word, 0) for word in words])
    found, words = _config_of(flags, Path(), notes), [word.text for word in others]
    first = words[0] if words else ""
    if first and (not is_assignment(first) or Path(first).is_file()):
        found += _in_file(Path(first), notes)
        words = words[1:]
    problems = list[str]()
    for word in words:
        try:
            found.append(assignment(word))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return _settled(found, notes)


def _in_file(path: Path, notes: list[str]) -> list[Assignment]:
    if not path.is_file():
        raise ConfigError(
            f"{path}: there is no such file; --verl takes a script (.sh), a YAML file, or settings like "
            "algorithm.adv_estimator=grpo"
        )
    if path.suffix in YAML:
        found, said = assignments_of(path)
        notes += said
        return found
    return _of_call(path, notes)


def _of_call(path: Path, notes: list[str]) -> list[Assignment]:
    """The assignments of a script's call of verl. Raises ConfigError: a word that is none, or is not known."""
    try:
        words = find_call(content(path), PROGRAM, os.environ, path=str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    found, problems = list[Assignment](), list[str]()
    flags, words = _flags(words)
    for word in words:
        try:
            found.append(_known(word, word.text.partition("=")[0], f"{path} {word.place}"))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return [*_config_of(flags, path, notes), *found]


def _flags(words: Sequence[Word]) -> tuple[dict[str, Word], list[Word]]:
    """Return the values of Hydra's flags that name a file, and the other words."""
    flags, others, arguments = dict[str, Word](), list[Word](), iter(words)
    for word in arguments:
        name, equals, value = word.text.partition("=")
        if name in CONFIG_FLAGS:
            flags[name.lstrip("-")] = replace(word, text=value) if equals else next(arguments, Word("", word.line))
        else:
            others.append(word)
    return flags, others


def _known(word: Word, name: str, place: str) -> Assignment:
    """The assignment of a word of a script; one whose value is not known keeps the reason as its value."""
    if word.why and "=" in word.text and not re.search(r"[$`]", name):
        return Assignment(name.lstrip("+~"), _Unknown(word.why), place)
    if word.why:
        raise ConfigError(f"{place}: {shown(word.text)}: {word.why}")
    if not is_assignment(word.text):
        raise ConfigError(f"{place}: {shown(word.text)}: expected key=value")
    return assignment(word.text, place)


@dataclass(frozen=True)
class _Unknown:
    """The value of a setting that a script does not determine."""

    reason: str


def _config_of(flags: dict[str, Word], path: Path, notes: list[str]) -> list[Assignment]:
    """The YAML file that Hydra's flags name, from `path` on; verl's own has the defaults that the table knows."""
    names = [flags[each] for each in ("config-name", "cn") if each in flags]
    folders = [flags[each] for each in ("config-path", "cp", "config-dir", "cd") if each in flags]
    if not names or OWN_CONFIG.fullmatch(names[0].text):
        return []
    for word in (*names[:1], *folders[:1]):
        if word.why:
            raise ConfigError(f"{path} {word.place}: {shown(word.text)}: {word.why}")
    name = names[0].text
    file = (
        (path.parent if path.name else path)
        / (folders[0].text if folders else "")
        / (name if name.endswith(YAML) else f"{name}.yaml")
    )
    if not file.is_file():
        raise ConfigError(f"--config-name={name}: there is no file {file}; give its path as the first word instead")
    found, said = assignments_of(file)
    notes += said
    return found


def _settled(found: Sequence[Assignment], notes: list[str]) -> Reading:
    """What was given, by name: tables flattened, free tables put together, the last of several values, `${...}`."""
    latest = dict[str, Assignment]()
    for each in found:
        for leaf in _flat(each):
            if leaf.key in latest and leaf.mark != "~":
                notes.append(f"{leaf.key} is given more than once; {shown(leaf.value)} counts, the last")
                del latest[leaf.key]
            latest[leaf.key] = leaf
    table, problems, said = DIALECT.table_for(latest), list[str](), dict[str, Said]()

    def lookup(name: str) -> Any:
        value = latest[name].value if name in latest else table[name].default
        if isinstance(value, _Unknown):
            raise ConfigError(value.reason)
        return value

    for key, each in latest.items():
        where = f"{each.place}: {key}" if each.place else key
        try:
            if isinstance(each.value, _Unknown):
                raise ConfigError(each.value.reason)
            value = resolved(each.value, key, lookup)
        except ConfigError as error:
            if key not in table or table[key].fate != "no meaning":
                problems.append(f"{where}: {error}")
            value = each.value
        said[key] = Said(value, each.place)
    if problems:
        raise ConfigError("\n".join(problems))
    return Reading(_gathered(said), tuple(notes))


def _flat(each: Assignment) -> list[Assignment]:
    """A table's leaves, where its names are settings; a free table as it is."""
    free = each.key in OPEN or any(each.key.startswith(f"{name}.") for name in OPEN)
    if not isinstance(each.value, dict) or not each.value or free:
        return [each]
    inner = [Assignment(f"{each.key}.{name}", value, each.place, each.mark) for name, value in each.value.items()]
    return [leaf for part in inner for leaf in _flat(part)]


def _gathered(said: dict[str, Said]) -> dict[str, Said]:
    """The settings with those of a free table as one: `reward_kwargs.limit=3` is `reward_kwargs={limit: 3}`."""
    found = dict[str, Said]()
    for key, each in said.items():
        name = next((name for name in OPEN if key.startswith(f"{name}.")), None)
        if name is None:
            before = found[key].value if key in found and isinstance(found[key].value, dict) else {}
            merged = {**before, **each.value} if isinstance(each.value, dict) else each.value
            found[key] = Said(merged, each.place)
            continue
        table = found[name].value if name in found and found[name].value is not None else {}
        if not isinstance(table, dict):
            raise ConfigError(f"{key}: {name}={shown(table)} is given, too, and is no table; leave one of them out")
        found[name] = Said(_inserted(table, key.removeprefix(f"{name}.").split("."), each.value), each.place)
    return found


def _inserted(table: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    inner = table.get(path[0])
    if len(path) == 1:
        return {**table, path[0]: value}
    return {**table, path[0]: _inserted(inner if isinstance(inner, dict) else {}, path[1:], value)}
