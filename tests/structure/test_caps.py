"""Caps that keep a file readable: a file of at most 400 lines, a function of at most 60, trainer.py of at most 250."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_CAP, FUNCTION_CAP, TRAINER_CAP = 400, 60, 250


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_file_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cap = TRAINER_CAP if path.name == "trainer.py" else FILE_CAP
    assert text.count("\n") <= cap
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_CAP, f"{node.name} has {length} lines"


def test_there_is_source_to_measure() -> None:
    assert len(SOURCES) > 5


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_nothing_loads_pickles_or_evaluates_text(path: Path) -> None:
    forbidden = {"eval", "exec", "pickle.load", "pickle.loads", "torch.load", "sympify", "parse_expr"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in forbidden, f"line {node.lineno}"
