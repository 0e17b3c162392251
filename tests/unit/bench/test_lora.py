"""The benchmark of LoRA: both systems do the same work, and the table and the page say what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from bench.cases import CELLS, RANK
from bench.single.lora import GOALS, OTHERS, table
from bench.systems.ours import settings

ROOT = Path(__file__).parents[3]


def figures(seconds: float, peak: int) -> dict[str, Any]:
    return {"seconds": [seconds, seconds + 1, seconds + 5], "peak_bytes": peak}


def test_the_table_has_ratios_of_seconds_processor_seconds_and_memory_beside_their_goals() -> None:
    systems = {"oncurve-lora": figures(1.0, 2 * 10**9), "oncurve": figures(3.0, 5 * 10**9)}
    found = {"systems": systems, "ratio": [2.0, 1.5, 2.5], "cpu_ratio": [1.9, 1.8, 2.0], "memory": 0.4}
    assert table({"494M": {"oncurve": found}}).splitlines()[-1] == (
        "| 494M | oncurve, all weights | 4.00 s, 5.00 GB | 2.00 s, 2.00 GB | 2.00 (1.50 to 2.50) "
        "| 1.90 (1.80 to 2.00) | 1.25 | 0.40 | 0.45 |"
    )


def test_every_system_beside_it_has_goals() -> None:
    assert set(GOALS) == set(OTHERS)


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
