"""Tables of keys as TOML: each form of a row, and mistakes that name the row."""

from pathlib import Path
from typing import Any

import pytest

from oncurve.base.errors import ConfigError
from oncurve.compat.dialect import Dialect, Key, Said, Values
from oncurve.compat.tables import keys_of

ROWS = """
[[keys]]
theirs = "optim.lr"
ours = ["learner.learning_rate"]
default = 1e-6
applied = true
types = "number"

[[keys]]
theirs = "total clipped"
ours = ["run.steps", "run.epochs"]
make = "positive"
types = "whole or null"

[[keys]]
section = "data mm.data"
theirs = "image_key video_key"
note = "prompts are text"

[[keys]]
theirs = "loss"
ours = ["objective.kind"]
map = { vanilla = "clipped", none = {}, dppo = { "objective.kind" = "dppo", "objective.delta" = 0.2 } }
not_here = { cov = "write it in a file" }

[[keys]]
theirs = "chat"
ours = ["data.chat"]
map = { true = "always", false = "never" }
types = "flag"

[[keys]]
theirs = { top_p = 1.0, stop = "null", beams = 1 }
note = "completions are sampled whole"
refused = true

[[keys]]
theirs = "top_k"
note = "completions are sampled whole"
refused = true
harmless = [-1, "null"]

[[keys]]
theirs = "seed"
ours = ["run.seed"]
types = "whole or null"
"""


def positive(value: Any, values: Values) -> int | None:
    return value if value > 0 else None


def keys(folder: Path, text: str) -> tuple[Key, ...]:
    (folder / "rows.toml").write_text(text)
    return keys_of(folder / "rows.toml", {"positive": positive})


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    said = {name: Said(value) for name, value in given.items()}
    return Dialect("tool", "1", keys(folder, ROWS)).translate(said).settings


def test_rows_are_keys(tmp_path: Path) -> None:
    table = {key.theirs: key for key in keys(tmp_path, ROWS)}
    lr = Key("optim.lr", ("learner.learning_rate",), default=1e-6, applied=True, types=(float,))
    assert table["optim.lr"] == lr
    names = ["data.image_key", "data.video_key", "mm.data.image_key", "mm.data.video_key"]
    assert [table[name] for name in names] == [Key(name, (), "prompts are text") for name in names]
    assert (table["top_p"].default, table["top_p"].harmless, table["beams"].harmless) == (
        1.0,
        (1, 1.0, None),
        (1, 1.0, None),
    )
    assert (table["stop"].default, table["stop"].harmless, table["top_k"].harmless) == (None, (None,), (-1, None))


def test_values_are_made_by_functions_and_maps(tmp_path: Path) -> None:
    usual = {"learner": {"learning_rate": 1e-6}}
    assert settings(tmp_path, total=3, clipped=0, seed=None) == usual | {"run": {"steps": 3}}
    assert settings(tmp_path, loss="vanilla", chat=True) == usual | {
        "objective": {"kind": "clipped"},
        "data": {"chat": "always"},
    }
    assert settings(tmp_path, loss="dppo")["objective"] == {"kind": "dppo", "delta": 0.2}
    assert settings(tmp_path, loss="none", seed=4) == usual | {"run": {"seed": 4}}
    for word, why in (
        ("cov", "cov: not available here: write it"),
        ("vanila", "expected one of vanilla, .* did you mean"),
    ):
        with pytest.raises(ConfigError, match=f"loss: {why}"):
            settings(tmp_path, loss=word)


@pytest.mark.parametrize(
    "row", ['theirs = "a"\nnotes = "x"', 'theirs = "a"\nmake = "missing"', 'theirs = "a"\ntypes = "int"', 'note = "x"']
)
def test_a_mistake_in_a_row_names_it(row: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows\.toml: (a|None): "):
        keys(tmp_path, f"[[keys]]\n{row}\n")
