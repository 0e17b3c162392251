"""A run that was given no folder is called after its recipe and model."""

from pathlib import Path
from typing import Any

import pytest

from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.config import RunConfig
from oncurve.run import free_directory, run_name


def config(model: str, name: str | None = None) -> RunConfig:
    given: dict[str, Any] = {"model": {"path": model}, "run": {"name": name}}
    return RunConfig.model_validate(given)


@pytest.mark.parametrize(
    ("recipe", "model", "name"),
    [
        *table("naming", "a_run_has_the_names_of_recipe_and_model"),
        ("a" * 200, "m", "a" * 80),
    ],
)
def test_a_run_has_the_names_of_recipe_and_model(recipe: str, model: str, name: str) -> None:
    assert run_name(recipe, config(model)) == name


def test_a_taken_name_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("runs/x", "runs/x-2", "runs/x-3"):
        assert free_directory("x") == Path(expected)
        Path(expected).mkdir(parents=True)
    with pytest.raises(ConfigError, match="too long"):
        free_directory("x" * 5000)
