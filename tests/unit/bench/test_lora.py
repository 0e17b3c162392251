"""The benchmark of LoRA: both systems do the same work, and the table and the page say what was measured."""

import json
from pathlib import Path

import pytest
from bench.cases import CELLS, RANK
from bench.single.lora import table
from bench.systems.ours import settings

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("system", ["oncurve-lora", "trl-lora", "trl-lora-autocast"])
def test_systems_with_an_adapter_have_the_same_rank(system: str) -> None:
    assert CELLS["494M fixed"].under(system).options["lora"] == RANK


def test_the_adapter_is_a_section_of_the_recipe_and_no_setting_of_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.models.token_rows", lambda case, steps: [])
    monkeypatch.setattr("bench.models.model_path", lambda *_: Path("model"))
    recipe = settings(CELLS["6.5M fixed"].under("oncurve-lora"))
    assert recipe["lora"] == {"rank": RANK}
    assert recipe["learner"] == {}
    assert "lora" not in settings(CELLS["6.5M fixed"])


@pytest.mark.skipif(not (ROOT / "bench/results/lora.json").is_file(), reason="not measured yet")
def test_the_page_has_the_figures_of_the_results() -> None:
    results = json.loads((ROOT / "bench/results/lora.json").read_text(encoding="utf-8"))["results"]
    assert table(results) in (ROOT / "docs/performance.md").read_text(encoding="utf-8")
