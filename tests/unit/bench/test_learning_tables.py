"""The table of docs/learning.md: what is run, what is computed from it, and that the page says what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from bench.learning import presets
from bench.learning.runs import PAGE, filled, measured, read

from oncurve.config import load_config
from oncurve.config.layers import PRESETS


@pytest.mark.parametrize("name", sorted({file.stem for file in PRESETS.glob("*.toml")} - {*presets.LEFT_OUT}))
def test_every_preset_has_a_run_that_loads(name: str) -> None:
    config, _ = load_config(presets.RECIPE, presets.words_of(name, 3, 14, 128))
    assert (config.run.seed, config.run.steps, config.rollout.group_size, config.data.prompts_per_step) == (
        3,
        14,
        8,
        16,
    )
    assert config.learner.learning_rate == (2e-3 if name == "lora" else 2e-4)


def result(rewards: list[float], before: str = "", after: str = "", seconds: float = 1.0) -> dict[str, Any]:
    right = {"before": [int(x) for x in before], "after": [int(x) for x in after]}
    return {"reward_mean": rewards, "seconds": 9.0, "processor_seconds": seconds, **right}


def test_the_difference_is_paired_over_problems_and_seeds() -> None:
    runs = {"0": result([], "0011", "1111", 3.0), "1": result([], "0101", "0111", 5.0)}
    (row,) = presets.table({"runs": {"rloo": runs}}).splitlines()[2:]
    assert row.startswith("| `rloo` | 0.500 | 0.875 | +0.375 (")
    assert row.endswith("| 4 |")
    nothing = {"runs": {"opo": {"0": result([], "0101", "0101")}}}
    assert "| **no** |" in presets.table(nothing)
    del runs["0"]["processor_seconds"], runs["1"]["processor_seconds"]
    assert "not measured |" in presets.table({"runs": {"rloo": runs}})


def test_runs_of_another_size_are_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps({"size": {"steps": 3}, "runs": {"a": {"0": {}}}}))
    assert read(file, {"steps": 3})["runs"] == {"a": {"0": {}}}
    assert read(file, {"steps": 4})["runs"] == read(file, {"steps": 3}, fresh=True)["runs"] == {}
    found = read(file, {"steps": 3})
    measured(found, {("a", "0"): (tmp_path, [])}, file, 1)  # nothing is missing, so nothing is run
    assert found["runs"] == {"a": {"0": {}}}


def test_the_page_says_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = json.loads(presets.OUT.read_text(encoding="utf-8"))
    assert filled(page, "presets", presets.table(found)) == page, "run: python -m bench.learning.presets"
