"""Which functions of Python code are stored by their path, so that a resume needs nothing."""

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oncurve.imports import locate
from oncurve.rewards import path_of

SOURCE = """
import functools

def length(completion):
    return float(len(completion))

def wrapping(function):
    @functools.wraps(function)
    def inner(completion):
        return function(completion)
    return inner

@wrapping
def decorated(completion):
    return 0.0

other = length
short = lambda completion: 1.0

def twice(completion):
    return 1.0

def twice(completion, answer):
    return 2.0
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "lengths_é.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lengths_é")
    del sys.modules["lengths_é"]


def test_a_function_at_the_top_of_a_file_has_the_path_by_which_a_worker_finds_it(module: ModuleType) -> None:
    path = path_of(module.length)
    assert path == f"{module.__file__}:length"
    assert locate(str(path))("four") == 4.0
    assert path_of(module.other) == path
    assert str(path_of(module.twice)).endswith(":twice")  # the one that the name means


NOT_BY_PATH: dict[str, Callable[[ModuleType], Any]] = {
    "a decorated one": lambda module: module.decorated,
    "a closure": lambda module: module.wrapping(module.length),
    "a lambda": lambda module: module.short,
    "a part of a function": lambda module: functools.partial(module.length),
    "one of a package": lambda module: path_of,
    "a builtin": lambda module: len,
    "a class": lambda module: Path,
}


@pytest.mark.parametrize("what", NOT_BY_PATH)
def test_others_have_none(module: ModuleType, what: str) -> None:
    assert path_of(NOT_BY_PATH[what](module)) is None


def test_a_script_that_runs_is_not_run_again_by_a_worker(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.length, "__module__", "__main__")
    assert path_of(module.length) is None
