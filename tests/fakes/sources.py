"""The trees of the package's modules: tests of the structure walk the same ones."""

import ast
from functools import cache


@cache
def tree_of(source: str) -> ast.Module:
    """Return the tree of a module's source, parsed once per process."""
    return ast.parse(source)
