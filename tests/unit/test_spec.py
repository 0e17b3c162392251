from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.base.imports import locate
from oncurve.components import Component, build, kind_of


class Clip(Component):
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = 0.2
    dual_clip: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    words: tuple[str, ...] = ()
    on: bool = False
    count: int = 1
    where: Literal["loss", "reward"] = "loss"


class Plain(Component):
    pass


KINDS: dict[str, type[Component]] = {"clip": Clip, "plain": Plain}


def complaint(settings: Any, **options: Any) -> str:
    return message_of(ConfigError, build, settings, KINDS, "objective", **options)


def test_a_kind_becomes_its_component_with_defaults():
    assert build({"kind": "clip", "clip_high": 0.28}, KINDS, "objective") == Clip(clip_high=0.28)
    assert build({"clip_high": 0.28}, KINDS, "objective", default_kind="clip") == Clip(clip_high=0.28)
    assert build({}, {"plain": Plain}, "objective") == Plain()


def test_a_component_is_returned_as_it_is():
    made = Clip()
    assert build(made, KINDS, "objective") is made


def test_an_unknown_key_is_named_with_its_nearest():
    said = complaint({"kind": "clip", "clip_hihg": 0.28})
    assert said.startswith("objective.clip_hihg: unknown key; did you mean 'objective.clip_high'?")


def test_an_unknown_kind_is_named_with_its_nearest_and_all_there_are():
    said = complaint({"kind": "clipp"})
    assert "did you mean 'clip'?" in said
    assert "clip, plain" in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        *table("spec", "a_value_never_changes_its_type_silently"),
        ({"clip_low": float("nan")}, "objective.clip_low: should be a finite number, got nan"),
    ],
)
def test_a_value_never_changes_its_type_silently(settings: dict[str, Any], said: str):
    assert complaint({"kind": "clip", **settings}) == said


CODE = """
from oncurve.components.spec import Component
import neighbour

class Mine(Component):
    scale: float = neighbour.SCALE

def reward(completion): return 1.0
"""


def test_code_is_located_in_a_file_beside_the_recipe(tmp_path: Path):
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "neighbour.py").write_text("SCALE = 3.0")
    made = build({"kind": "mine.py:Mine"}, KINDS, "objective", base=tmp_path)
    assert made.model_dump() == {"scale": 3.0}
    assert kind_of(made, KINDS) == f"{tmp_path / 'mine.py'}:Mine"
    assert build({"kind": kind_of(made, KINDS)}, KINDS, "objective") == made  # one class, whatever the spelling
    assert locate("mine.py:reward", tmp_path)("x") == 1.0


@pytest.mark.parametrize(("path", "said"), table("spec", "what_cannot_be_located_is_said"))
def test_what_cannot_be_located_is_said(path: str, said: str, tmp_path: Path):
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / "raises.py").write_text("x = 1\n1 / 0\n")
    (tmp_path / "lacks.py").write_text("import nonesuch")
    with pytest.raises(ConfigError, match=said):
        locate(path, tmp_path)
