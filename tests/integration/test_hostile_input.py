"""Input that no file system, parser or machine can hold: one message, exit code 2, nothing made, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.project import Command, refused
from fakes.tables import table

PATHS = {"long": "x" * 5000, "NUL": "a\0b", "a long name": "x" * 300, "deep": "/".join(["d"] * 3000), "~": "~nouser/x"}
PLACES: dict[str, tuple[str, ...]] = table("hostile_input", "places")


@pytest.mark.parametrize("place", PLACES)
def test_a_path_that_no_file_system_holds_is_refused(command: Command, place: str) -> None:
    for name, path in PATHS.items():
        if (place, name) != ("name", "~") and (name != "NUL" or "=" in PLACES[place][-1]):  # no shell passes NUL on
            refused(command(*(word.format(path) for word in PLACES[place])))


def nested(first: str, form: str) -> str:
    """YAML in which each of eight letters has the one before nine times, in this form."""
    pairs = zip("abcdefgh", "bcdefghi", strict=True)
    return first + "".join(form.format(now, ",".join(["*" + before] * 9)) for before, now in pairs)


RECIPES = {
    **table("hostile_input", "recipes"),
    "lists.toml": "[run]\nsteps=" + "[" * 20_000 + "]" * 20_000,
    "tables.toml": "[run]\nsteps=" + "{a=" * 5000 + "1" + "}" * 5000,
    "dotted.toml": ".".join(["run"] * 5000) + "=1",
    "header.toml": "[" + ".".join(["run"] * 5000) + "]\nx=1",
    "digits.toml": "[run]\nsteps=" + "9" * 6000,
    "lists.yaml": "run: " + "[" * 3000 + "]" * 3000,
    "bomb.yaml": nested("a: &a [x,x,x,x,x,x,x,x,x]\n", "{0}: &{0} [{1}]\n") + "rollout: {stop: *i}\n",
    "merged.yaml": nested("a: &a {x: 1}\n", "{0}: &{0}\n  <<: [{1}]\n"),
    "digits.yaml": "run:\n  steps: " + "9" * 6000,
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_that_is_nested_or_sized_beyond_sense_is_refused(command: Command, name: str) -> None:
    Path(name).write_text(RECIPES[name])
    refused(command("train", name, "--out", "out"))


WORDS = ["rewards.²=1", "rewards." + "9" * 5000 + ".x=1", "run.steps=" + "9" * 6000, "run.steps=" + "[" * 20_000]
WORDS += ["rewards.0.pattern=" + "(" * 5000, "data.template=" + "{" * 5000, "=", ".=", "rewards.0=[1]", "run=[]"]


@pytest.mark.parametrize("word", WORDS, ids=range(len(WORDS)))
def test_a_setting_that_cannot_be_read_is_refused(command: Command, word: str) -> None:
    refused(command("train", "recipe.toml", word, "--out", "out"))


CONFIGURATIONS: list[dict[str, Any] | str] = [*table("hostile_input", "configurations"), '{"a":' * 3000]


@pytest.mark.slow
@pytest.mark.parametrize("change", CONFIGURATIONS, ids=lambda change: str(change)[:40])
def test_a_configuration_that_no_model_has_is_refused_by_train_and_plan(
    command: Command, change: dict[str, Any] | str
) -> None:
    file = Path("model/config.json")
    text = change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change)
    file.write_text(text)
    refused(command("train", "recipe.toml", "run.steps=1", "--out", "out"), "model")
    said = command("plan", "recipe.toml", "rollout.group_size=2")
    assert said.code == 2, said
    assert "Traceback" not in said.err
    assert "model" in said.err


def test_a_librarys_error_is_shown_whole_below_what_to_do(command: Command) -> None:
    file = Path("model/config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "nope"}))
    said = command("train", "recipe.toml", "--out", "out")
    first, *rest = said.err.splitlines()
    assert "the model cannot be loaded; check its files" in first
    assert rest[0].startswith("  ValueError: ")
    assert "nope" in rest[0]
    assert len(rest) > 2  # transformers says what to do in further lines


def test_a_working_directory_that_was_deleted_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"rm -r {gone}; exec {sys.executable} -m oncurve"
    for words in ("train recipe.toml", "demo"):
        said = subprocess.run(
            ["sh", "-c", f"{script} {words}"], cwd=gone, capture_output=True, text=True, check=False, env=os.environ
        )
        gone.mkdir()
        assert said.returncode == 2, said
        assert said.stderr == (
            "oncurve: the working directory cannot be used (No such file or directory); cd to one that exists\n"
        )
