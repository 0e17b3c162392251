"""Doors: a room is imported through its `__init__`, and no files import each other in a circle.

The files of a room import each other as they like. `base` and `machine` are shelves: each of their files is a door.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from fakes.sources import SOURCE, imported, modules, room, tree_of

FILES = modules(SOURCE / "oncurve")
BENCH = modules(SOURCE.parent / "bench")
SHELVES = {"oncurve", "oncurve.base", "oncurve.machine"}
ROOMS = {name for name, path in FILES.items() if path.name == "__init__.py"}


def room_of(module: str) -> str:
    return module if module in ROOMS else module.rpartition(".")[0]


def past_the_door(module: str, source: str) -> list[str]:
    """What a file imports from inside a room that it is not in."""
    found = [name for name in imported(tree_of(source), FILES) if name in FILES and name not in ROOMS]
    return [name for name in found if room_of(name) not in SHELVES and room(name) != room(module)]


def test_rooms_are_imported_through_their_inits() -> None:
    past = {module: past_the_door(module, path.read_text(encoding="utf-8")) for module, path in FILES.items()}
    assert {module: found for module, found in past.items() if found} == {}


def test_code_on_a_page_imports_rooms_through_their_inits() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in SOURCE.parent.glob("docs/*.md"))
    lines = re.findall(r"^from oncurve[\w.]* import (?:\([^)]*\)|\w[\w, ]*$)", pages, re.MULTILINE)
    assert past_the_door("a_script", "\n".join(lines)) == []
    private = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.ImportFrom) and node.module in ROOMS
        for alias in node.names
        if f"{alias.name} as {alias.name}" not in FILES[node.module].read_text(encoding="utf-8")
    ]
    assert private == [], "type checkers take what a room does not give as `X as X` for private"


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("files", [FILES, BENCH], ids=["oncurve", "bench"])
def test_no_files_import_each_other_in_a_circle(files: dict[str, Path]) -> None:
    inside = {name: path for name, path in files.items() if path.name != "__init__.py"}
    trees = {name: tree_of(path.read_text(encoding="utf-8")) for name, path in inside.items()}
    assert circle({name: inside.keys() & imported(tree, files) for name, tree in trees.items()}) == []
