from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.config.layers import from_mapping, from_overrides, read_layers
from oncurve.config.loading import merge


def value_of(word: str) -> Any:
    layer, _ = from_overrides([word], Path("/here"))
    return layer.assignments[0][1]


def complaint(recipe: Path | str, extends: str | None = None) -> str:
    return message_of(ConfigError, read_layers, recipe, extends)


@pytest.mark.parametrize(
    ("text", "value"), [*table("layers", "a_value_on_the_command_line_is_toml_or_else_a_string"), ("null", None)]
)
def test_a_value_on_the_command_line_is_toml_or_else_a_string(text: str, value: Any):
    assert value_of(f"section.key={text}") == value
    assert type(value_of(f"section.key={text}")) is type(value)


@pytest.mark.parametrize("word", ["kl.coef", "--steps", "=5", ".coef=1", "kl.=1"])
def test_what_is_no_override_is_refused(word: str):
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        from_overrides([word], Path("/here"))


def test_paths_are_relative_to_where_they_were_written(tmp_path: Path):
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    table = {
        "model": {"path": "models/tiny"},
        "data": {"path": "a.jsonl", "eval_path": "../b.jsonl", "template": "data/x"},
        "advantage": {"kind": "mine.py:Median"},
        "rewards": [{"kind": "python", "path": "sub/reward.py:score"}, {"kind": "python", "path": "lab.rewards:score"}],
    }
    assert dict(from_mapping(table, "recipe", tmp_path).assignments) == {
        ("model", "path"): str(tmp_path / "models" / "tiny"),
        ("data", "path"): str(tmp_path / "a.jsonl"),
        ("data", "eval_path"): str(tmp_path.parent / "b.jsonl"),
        ("data", "template"): "data/x",
        ("advantage", "kind"): f"{tmp_path}/mine.py:Median",
        ("rewards",): [
            {"kind": "python", "path": f"{tmp_path}/sub/reward.py:score"},
            {"kind": "python", "path": "lab.rewards:score"},
        ],
    }
    inline, _ = from_overrides(["rewards.0.path=reward.py:score"], tmp_path)
    assert inline.assignments == ((("rewards", 0, "path"), f"{tmp_path}/reward.py:score"),)


def test_a_chain_of_extends_is_read_from_the_bottom_up(tmp_path: Path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "base.toml").write_text('extends = "dr_grpo"\n[data]\npath = "d.jsonl"\n')
    (tmp_path / "top.yaml").write_text("extends: base/base.toml\nlearner:\n  learning_rate: 1e-6\n")
    layers, folder = read_layers(tmp_path / "top.yaml")
    base = str(tmp_path / "base" / "base.toml")
    assert [layer.name for layer in layers] == ["preset dr_grpo", base, str(tmp_path / "top.yaml")]
    assert layers[1].assignments == ((("data", "path"), str(tmp_path / "base" / "d.jsonl")),)
    assert layers[2].assignments == ((("learner", "learning_rate"), "1e-6"),)  # YAML's trap; the field mends it
    assert folder == tmp_path
    above = [layer.name for layer in read_layers(tmp_path / "top.yaml", "rlox")[0]]
    assert above == ["preset dr_grpo", base, "preset rlox", str(tmp_path / "top.yaml")]


def test_of_several_extended_files_the_later_win_and_each_counts_once(tmp_path: Path):
    (tmp_path / "base.toml").write_text("[kl]\ncoef = 0.1\n")
    (tmp_path / "one.toml").write_text('extends = "base.toml"\n[kl]\ncoef = 0.2\n[run]\nseed = 1\n')
    (tmp_path / "two.toml").write_text('extends = "base.toml"\n[run]\nseed = 2\n')
    (tmp_path / "top.toml").write_text('extends = ["one.toml", "two.toml"]\n[run]\nsteps = 3\n')
    layers, _ = read_layers(tmp_path / "top.toml")
    assert [Path(layer.name).stem for layer in layers] == ["base", "one", "two", "top"]
    assert merge(layers) == {"kl": {"coef": 0.2}, "run": {"seed": 2, "steps": 3}}
    layer, extends = from_overrides(['extends=["rlox", "dr_grpo"]'], tmp_path)
    assert (layer.assignments, extends) == ((), ["rlox", "dr_grpo"])
    assert [layer.name for layer in read_layers(None, extends)[0]] == ["preset rlox", "preset dr_grpo"]
    above = [Path(layer.name).stem for layer in read_layers(tmp_path / "one.toml", ["rlox"])[0]]
    assert above == ["base", "preset rlox", "one"]  # a recipe that is extended stays, presets give way
    (tmp_path / "preset.toml").write_text('extends = ["dr_grpo", "base.toml"]\n[run]\nsteps = 3\n')
    above = [Path(layer.name).stem for layer in read_layers(tmp_path / "preset.toml", ["rlox"])[0]]
    assert above == ["base", "preset rlox", "preset"]
    for words in (
        ["extends=rlox", "extends=dr_grpo"],
        ["extends=[rlox, dr_grpo]"],
        ["extends=[rlox]", "extends=dr_grpo"],
    ):
        assert from_overrides(words, tmp_path)[1] == ["rlox", "dr_grpo"]


@pytest.mark.parametrize(("name", "content", "said"), table("layers", "a_recipe_that_cannot_be_read_is_said"))
def test_a_recipe_that_cannot_be_read_is_said(tmp_path: Path, name: str, content: str, said: str):
    (tmp_path / name).write_text(content)
    assert said in complaint(tmp_path / name)
