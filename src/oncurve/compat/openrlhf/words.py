"""OpenRLHF's flags, and their translation.

Covered: every flag of 0.11, and the flat names that releases before had (`--pretrain`). Not covered: what is not a
flag, such as DeepSpeed's files or an agent's code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, noted, refuse, shown, suggest
from oncurve.compat.dialect import Dialect, Key, Said, Translation, placed
from oncurve.compat.openrlhf import functions
from oncurve.compat.tables import keys_of

HERE = Path(__file__).parent
TABLES = ("keys", "unused")
DIALECT = Dialect(
    "OpenRLHF", "0.11", tuple(key for name in TABLES for key in keys_of(HERE / f"{name}.toml", vars(functions)))
)
_NAMES = tomllib.loads((HERE / "names.toml").read_text(encoding="utf-8"))
RENAMED: dict[str, str] = _NAMES["renamed"]
"""The flat names of releases before 0.10, to those of 0.11."""
SHORTHANDS: dict[str, dict[str, Any]] = _NAMES["shorthands"]
"""Flags of earlier releases that stand for others with a value."""

ABOUT = (HERE / "about.md").read_text(encoding="utf-8") + "\n".join(
    f"* `--{old}`: `--{new}`" for old, new in sorted(RENAMED.items()) if new.replace(".", "_") != old
)
"""The text of the page "Coming from another tool" before the table of flags, which has the names of 0.11."""

THRESHOLD = "algo.advantage.is_correction_threshold"


def from_openrlhf(words: Sequence[str]) -> Translation:
    """Return the settings of flags. Raises ConfigError: one is unknown, refused, without value or of a wrong type."""
    if not words:
        raise ConfigError("give OpenRLHF's flags, like --actor.model_name_or_path MODEL")
    if words[0].endswith(".sh"):
        raise ConfigError(
            f"{words[0]}: scripts are not read; write `oncurve config from-openrlhf` in it where `python3 -m "
            "openrlhf.cli.train_ppo_ray` stands, and run it"
        )
    table, said, problems = DIALECT.table, dict[str, Said](), list[str]()
    for flag, values in _flags(words).items():
        with noted(problems, f"{placed(flag)}: "):
            said.update(_said(flag, values, table))
    refuse(problems)
    return DIALECT.translate(said)


def _flags(words: Sequence[str]) -> dict[str, list[str]]:
    """Return each flag with the words up to the next one; of a flag that is given several times the last."""
    flags, stray = dict[str, list[str]](), list[str]()
    values = stray
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            values = flags[RENAMED.get(name, name)] = [value] if equals else []
        else:
            values.append(word)
    if stray:
        raise ConfigError(f"{shown(stray[0])}: expected a flag, like --actor.adam.lr 1e-6")
    return flags


def _said(name: str, values: list[str], table: Mapping[str, Key]) -> dict[str, Said]:
    if name in SHORTHANDS and not values:
        return {setting: Said(value) for setting, value in SHORTHANDS[name].items()}
    if name not in table:
        near = suggest(name, [*table, *RENAMED, *SHORTHANDS])
        raise ConfigError(f"{DIALECT.tool} {DIALECT.version} has no such flag{near}")
    return {name: Said(_value(table[name].types, values, name))}


def _value(types: tuple[type, ...], texts: list[str], name: str) -> Any:
    """Return the value of a flag as argparse reads it. Raises ConfigError: too few words, too many, or no number."""
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
