"""The trees of the package's modules: tests of the structure walk the same ones."""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@cache
def tree_of(source: str) -> ast.Module:
    """Return the tree of a module's source, parsed once per process."""
    return ast.parse(source)


def modules(package: Path) -> dict[str, Path]:
    """Return the files of a package by their module's name."""
    parts = {path: path.relative_to(package.parent).with_suffix("").parts for path in sorted(package.rglob("*.py"))}
    return {".".join(names).removesuffix(".__init__"): path for path, names in parts.items()}


def room(module: str) -> str:
    """Return the room at the top level that a module is in: `oncurve.models` of `oncurve.models.head.stats`."""
    return ".".join(module.split(".")[:2])


def imported(tree: ast.AST, files: Collection[str] = ()) -> Iterator[str]:
    """Yield the modules that a file imports, those of a `from room import name` that is one of `files`, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names if f"{node.module}.{alias.name}" in files)
            yield node.module
