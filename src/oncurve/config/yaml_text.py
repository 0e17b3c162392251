"""YAML texts, whose values are counted, with their aliases filled in, before anything is built of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

MOST_VALUES = 100_000  # aliases of aliases can mean more than any memory holds


def read_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises YAMLError, also for a key that stands twice or is no name."""
    with _loaded(text) as (loader, node):
        return None if node is None else loader.construct_document(node)


def yaml_node(text: str) -> Any:
    """Return the root of a YAML text with the places of its parts, None if it is empty. Raises YAMLError."""
    with _loaded(text) as (_, node):
        return node


@contextmanager
def _loaded(text: str) -> Iterator[tuple[_Loader, Any]]:
    """Yield a loader and the root of a text. Raises YAMLError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is not None and _expanded(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"more than {MOST_VALUES:,} values; do anchors refer to anchors?")
        yield loader, node
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    finally:
        loader.dispose()


def _expanded(node: Any, known: dict[int, float]) -> float:
    """Return how many values a node stands for with its anchors filled in; infinite where one contains itself."""
    if id(node) not in known:
        known[id(node)] = math.inf  # met again below itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        flat = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_expanded(part, known) for part in flat)
    return known[id(node)]


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """The safe loader, which in addition refuses a key that stands twice (plain YAML lets the last one win)."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        seen: set[str] = set()
        for key in keys:
            if not isinstance(key, str) or key in seen:
                problem = "stands twice" if isinstance(key, str) else "is not a name"
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} {problem}", node.start_mark)
            seen.add(key)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made
