"""A translation as the configuration of a run, and as a recipe to read and keep.

The recipe is TOML, with a comment at each setting that says where it comes from. What is wrong with the configuration
is said with the user's own keys.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from oncurve.base.errors import ConfigError
from oncurve.compat.dialect import MANY, Line, Translation
from oncurve.config import RunConfig, load_config, tables_of


def config_of(
    translation: Translation, overrides: Iterable[str] = (), arguments: Mapping[str, object] | None = None
) -> tuple[RunConfig, Path]:
    """Return the configuration that a translation describes, and the folder that its relative paths start in.

    `overrides` are words of oncurve, like `"kl.coef=0.01"`, and win; `arguments` are settings that it lacks.

    Raises ConfigError for what `load_config` refuses, each line with the tool's key that the setting comes from.
    """
    try:
        return load_config(None, overrides, settings=tables_of(arguments or {}, translation.settings))
    except ConfigError as error:
        raise ConfigError(translation.explained(str(error))) from None


WIDTH = 120


def recipe_of(translation: Translation) -> str:
    """Return the recipe of a translation: `load_config` reads it to the same run as `translation.settings`."""
    sections: dict[str, list[str]] = {}
    rewards: list[str] = []
    for line in translation.lines:
        for name, value in line.settings.items():
            section, _, key = name.partition(".")
            if section == MANY:
                for table in value:
                    rewards += ["", f"# {_source(line)}", f"[[{MANY}]]", *_assignments(table)]
            else:
                sections.setdefault(section, []).extend(_explained(key, value, _source(line)))
    body = [part for section, said in sections.items() for part in ("", f"[{section}]", *said)]
    parts = [line for line in translation.given("translated") if not line.settings]
    notes = _listed("Keys that are part of a setting above, or without effect next to it:", parts)
    notes += _listed(f"Keys of {translation.tool} without meaning here:", translation.given("no meaning"))
    notes += _listed("Refused elsewhere, but harmless with these values:", translation.given("refused"))
    return "\n".join([f"# {translation.counted()}.", *body, *rewards, *notes]) + "\n"


def _listed(title: str, lines: Sequence[Line]) -> list[str]:
    return ["", f"# {title}", *(f"#   {_source(line)}" for line in lines)] if lines else []


def _source(line: Line) -> str:
    """Return the source of a setting, as a comment: the tool's key and value, and how they differ.

    Control characters, which TOML has no comments with, are escaped.
    """
    text = f"{line.source}: {line.key.note}" if line.key.note else line.source
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(text.split()))


def _explained(key: str, value: Any, source: str) -> list[str]:
    """Return an assignment with its comment after it, or above it where the line would be too long."""
    assignment = f"{_key(key)} = {_toml(value)}"
    whole = f"{assignment}  # {source}"
    return [whole] if len(whole) <= WIDTH else [f"# {source}", assignment]


def _assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_toml(value)}" for key, value in table.items()]


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _toml(value: Any) -> str:
    """Return a value on one line; None as the text that stands for it, since TOML has no null."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_assignments(value))} }}" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return tomli_w.dumps({"v": "none" if value is None else value}).removeprefix("v = ").rstrip("\n")
