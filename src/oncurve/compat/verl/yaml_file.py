"""A YAML file of verl: its leaves as assignments, each with its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from oncurve.base.errors import ConfigError
from oncurve.compat.verl.hydra import DEEPEST, Assignment, plain
from oncurve.config import yaml_node


def assignments_of(path: Path) -> tuple[list[Assignment], list[str]]:
    """Return the settings of a YAML file, and a note on its `defaults`, which are files of verl and not read.

    Raises ConfigError: it cannot be read, is no YAML, no table, or has a key twice; with the line.
    """
    try:
        root = yaml_node(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        place = "" if mark is None else f" (line {mark.line + 1})"
        raise ConfigError(f"{path}: {problem}{place}") from None
    if root is None:
        return [], []
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: expected sections with settings, as verl's ppo_trainer.yaml has")
    found = list(_leaves(root, "", path, 0))
    said = "its files are not read; verl's own defaults are in their place"
    notes = [f"{each.place}: defaults: {said}" for each in found if each.key == "defaults"]
    return [each for each in found if each.key != "defaults"], notes


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
    """Return a scalar by Hydra's rules (1e-6 is a number, which it is not in YAML), or a list."""
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
