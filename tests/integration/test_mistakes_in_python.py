"""The corpus of mistakes in Python calls: a UserError with place and fix, shown as a message, and nothing left behind.

The command's: test_mistakes.py. Cells of a notebook, in a kernel: test_notebook.py.
"""

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncurve
from fakes.project import words_tokenizer
from fakes.tables import table
from fakes.tiny_policy import TinyLM
from oncurve.base.errors import UserError


@pytest.fixture(autouse=True)
def unchanged(project: Path, loads: list[str]) -> Iterator[None]:
    """Check that no model is loaded, and that nothing appears or changes in the project."""
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    yield
    assert not loads, "the model was loaded before the mistake was found"
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    assert not Path("out").exists()
    assert not Path("runs").exists()


def reward(completion: str) -> float:
    return float(len(completion))


class Rater:
    """An object that is no function."""


async def later(result: object) -> None:
    """A callback that nothing would wait for."""


GIVEN: dict[str, Any] = {"model": "model", "data": "data.jsonl", "reward": "exact", "steps": 1, "out": "out"}
TRAIN: dict[str, tuple[dict[str, Any], str]] = {
    **table("mistakes_in_python", "train"),
    "a module for a recipe": ({"recipe": TinyLM()}, "recipe: expected a file"),
    "a preset of a recipe": (
        {"recipe": "recipe.toml", "preset": "nosuch", "model": None, "data": None},
        "preset: there is no recipe or preset 'nosuch'",
    ),
    "a class as model": ({"model": Rater}, "model: expected a folder"),
    "no tokenizer": ({"model": TinyLM(), "out": None}, "needs a tokenizer"),
    "a tokenizer of a folder": ({"tokenizer": words_tokenizer()}, "brings its own"),
    "a dtype of a module": (
        {"model": TinyLM(), "tokenizer": words_tokenizer(), "settings": {"model": {"dtype": "float32"}}},
        "model.dtype: set to no effect",
    ),
    "a generator without rows": ({"data": iter(())}, "data.rows: missing"),
    "no reward": ({"reward": None}, "rewards: missing"),
    "an object as reward": ({"reward": Rater()}, "reward: expected a function, a kind, a path"),
    "a class as reward": ({"reward": Rater}, "reward Rater is a class, and a function or an object is called"),
    "a coroutine as callback": ({"on_step": later}, "on_step: expected a function, which is no coroutine"),
    "a column that is not there": ({"reward": lambda completion, anser: 1.0}, "needs 'anser'"),
    "a partial with a wrong name": ({"reward": functools.partial(reward, limit=3)}, "wrap it in a def"),
    "trackers without a folder": ({"out": None, "settings": {"tracking.to": ["tensorboard"]}}, "name one: out="),
}


def refused(call: Callable[[], Any], words: str) -> None:
    """Asserts a UserError with these words, of which a cell of a notebook shows the message and no frame."""
    with pytest.raises(UserError) as caught:
        call()
    assert words in str(caught.value)
    assert caught.value._render_traceback_() == [f"{type(caught.value).__name__}: {caught.value}"]


@pytest.mark.parametrize("what", TRAIN)
def test_a_call_of_train(what: str) -> None:
    arguments, words = TRAIN[what]
    refused(lambda: oncurve.train(**{**GIVEN, **arguments}), words)


RESUME = table("mistakes_in_python", "resume")


@pytest.mark.parametrize("what", RESUME)
def test_a_call_of_resume(what: str) -> None:
    arguments, words = RESUME[what]
    refused(lambda: oncurve.resume(**arguments), words)


def test_a_run_that_is_there_is_gone_on_with_by_a_call_of_python() -> None:
    Path("there").mkdir()
    Path("there/config.toml").write_text("")
    for given, call in (("exact", "oncurve.resume('there')"), (reward, "oncurve.resume('there', reward=reward)")):
        refused(lambda: oncurve.train(**{**GIVEN, "out": "there", "reward": given}), f"Continue it ({call})")  # noqa: B023
    shutil.rmtree("there")
