"""Caps that keep a file readable: a file of at most 400 lines, a function of at most 60, trainer.py of at most 250.

A folder has at most 16 modules, and a name stands at most twice, but for two that mean the same everywhere.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fakes.sources import tree_of

ROOT = Path(__file__).parents[2]
SOURCES = {
    path.relative_to(ROOT).as_posix(): path for room in ("src", "bench") for path in sorted((ROOT / room).rglob("*.py"))
}
FILE_CAP, FUNCTION_CAP, TRAINER_CAP = 400, 60, 250
FORBIDDEN = {"eval", "exec", "pickle.load", "pickle.loads", "torch.load", "sympify", "parse_expr"}


def too_long(name: str, text: str) -> Iterator[str]:
    """The file, if it is over its cap, and its functions that are over theirs."""
    lines = text.count("\n")
    if lines > (TRAINER_CAP if name.endswith("/trainer.py") else FILE_CAP):
        yield f"{name} has {lines} lines"
    for node in ast.walk(tree_of(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_CAP:
                yield f"{name}: {node.name} has {length} lines"


def unsafe_calls(name: str, text: str) -> Iterator[str]:
    """The calls that evaluate text or load pickles."""
    for node in ast.walk(tree_of(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN:
            yield f"{name}, line {node.lineno}: {ast.unparse(node.func)}"


def test_files_and_functions_stay_small() -> None:
    assert len(SOURCES) > 5
    assert [line for name, path in SOURCES.items() for line in too_long(name, path.read_text(encoding="utf-8"))] == []


def test_nothing_loads_pickles_or_evaluates_text() -> None:
    found = [line for name, path in SOURCES.items() for line in unsafe_calls(name, path.read_text(encoding="utf-8"))]
    assert found == []


def test_folders_stay_small_and_names_of_files_tell_them_apart() -> None:
    files = [path for name, path in SOURCES.items() if name.startswith("src/") and path.stem != "__init__"]
    assert max(Counter(path.parent for path in files).values()) <= 16
    assert {name for name, times in Counter(path.stem for path in files).items() if times > 2} == {"settings", "kinds"}
