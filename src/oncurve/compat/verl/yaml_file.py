"""A YAML file of verl: its leaves as assignments, each with its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from oncurve.base.errors import ConfigError
from oncurve.compat.verl.hydra import DEEPEST, Assignment, plain
from oncurve.config import yaml_node

LARGEST = 2_000_000
"""Bytes of a file that is read; verl's own has 40,000."""


def content(path: Path) -> str:
    """The text of a file. Raises ConfigError: missing, not readable, too large, or not UTF-8."""
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"{path}: larger than {LARGEST:,} bytes; no configuration or script of verl is")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def assignments_of(path: Path) -> tuple[list[Assignment], list[str]]:
    """What a YAML file sets, and what of it is not followed: its `defaults`, which are files of verl.

    Raises ConfigError, with the line: it is no YAML, no table, or has a key twice.
    """
    text = content(path)
    try:
        root = yaml_node(text)
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        place = "" if mark is None else f" (line {mark.line + 1})"
        raise ConfigError(f"{path}: {problem}{place}") from None
    if root is None:
        return [], []
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: expected sections with settings, as verl's ppo_trainer.yaml has")
    notes = list[str]()
    found = [each for each in _leaves(root, "", path, 0) if not _is_default(each, path, notes)]
    return found, notes


def _is_default(each: Assignment, path: Path, notes: list[str]) -> bool:
    """Whether an assignment is Hydra's list of files, which the note says is not followed."""
    if each.key != "defaults":
        return False
    notes.append(f"{each.place}: defaults: its files are not read; verl's own defaults are in their place")
    return True


def _leaves(node: Any, above: str, path: Path, depth: int) -> Iterator[Assignment]:
    if depth > DEEPEST:
        raise ConfigError(f"{path}: nested more than {DEEPEST} levels deep")
    seen = set[str]()
    for name, inner in node.value:
        place = f"{path} line {name.start_mark.line + 1}"
        if not isinstance(name, yaml.ScalarNode):
            raise ConfigError(f"{place}: a key is a name")
        if name.value in seen:
            raise ConfigError(f"{place}: {name.value} stands twice")
        seen.add(name.value)
        key = f"{above}.{name.value}" if above else name.value
        if isinstance(inner, yaml.MappingNode) and inner.value:
            yield from _leaves(inner, key, path, depth + 1)
        else:
            yield Assignment(key, _value(inner, place, depth), place)


def _value(node: Any, place: str, depth: int) -> Any:
    """A scalar by Hydra's rules (1e-6 is a number, which it is not in YAML), or a list."""
    if depth > DEEPEST:
        raise ConfigError(f"{place}: nested more than {DEEPEST} levels deep")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, place, depth + 1) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(name.value): _value(item, place, depth + 1) for name, item in node.value}
    if node.style in ("'", '"', "|", ">"):
        return node.value
    if node.value in ("", "~"):
        return None
    return {"yes": True, "on": True, "no": False, "off": False}.get(node.value.lower(), plain(node.value))
