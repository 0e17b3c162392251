from pathlib import Path

import pytest
from bench.__main__ import PARTS, parse
from bench.cases import CELLS, SYSTEMS
from bench.compare.cells import PAIRS, TRL, best_peer, in_rounds, needed_bytes
from bench.report.goals import GOALS, goals_table
from bench.report.tables import best_pair
from bench.results import Results, void_reasons


def figures(seconds: float, mismatch: float | None = 1e-3) -> dict:
    return {
        "seconds": seconds,
        "each": [seconds, seconds],
        "dtype": "bfloat16",
        "peak_bytes": int(1e9 * seconds),
        "phases": {"decode": seconds / 2},
        "mismatch": mismatch,
        "tokens": {"executed": 10.0, "useful": 5.0, "duplicated": 3.0, "padding": 2.0},
        "ideal_seconds": 0.5,
        "decode_ms": 7.0,
        "decode_roofline": 0.5,
        "train_mfu": None,
        "step_roofline": 0.4,
    }


def pair(theirs: str, seconds: float) -> dict:
    limits = {"float32": 1e11, "bfloat16": 1e12, "read": 2e10, "copy": 1e10}
    return {
        "order": "A B B A",
        "systems": {"oncurve": figures(1.0), theirs: figures(seconds, None)},
        "ratio": [seconds, seconds - 1, seconds + 1],
        "memory_ratio": 1 / seconds,
        "limits": {"before": limits, "after": limits},
    }


@pytest.fixture
def table() -> dict:
    cell = {"trl-fp32": pair("trl-fp32", 6.0), "trl-bf16": pair("trl-bf16", 3.5), "rlox": {"skipped": "no rlox"}}
    return {"cells": {"6.5M fixed": cell}, "gate": {"gates": {}}}


def test_trls_best_is_its_fastest(table: dict) -> None:
    assert best_pair(table["cells"]["6.5M fixed"]) == "trl-bf16"
    assert best_pair({"rlox": {"skipped": ""}}) is None


def test_a_goal_holds_by_the_lower_end_of_the_interval(table: dict) -> None:
    lines = goals_table(table).splitlines()
    assert next(line for line in lines if "f0 = 0 " in line and "| 6.5M" in line).endswith("| **no** |")
    assert sum("not measured" in line for line in lines) > 5
    assert len(lines) == len(GOALS) + 2


def test_a_failed_gate_or_a_mismatch_makes_the_run_void(table: dict) -> None:
    assert void_reasons(table) == []
    table["cells"]["6.5M fixed"]["trl-bf16"]["systems"]["oncurve"]["mismatch"] = 3e-3
    table["gate"]["gates"]["gradient float64"] = {"value": 1e-3, "limit": 1e-10, "passed": False}
    assert len(void_reasons(table)) == 2


def test_what_this_code_measured_is_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    first = Results(file, quick=False)
    first.put({"ratio": [2.0, 1.5, 2.5]}, "cells", "6.5M fixed", "rlox")
    first.put({"skipped": "no memory"}, "cells", "6.5M fixed", "trl-fp32")
    again = Results(file, quick=False)
    assert again.has("cells", "6.5M fixed", "rlox")
    assert not again.has("cells", "6.5M fixed", "trl-fp32")
    assert not again.has("growth")
    again.codes["cells"] = "other"
    assert not again.has("cells", "6.5M fixed", "rlox")
    assert not Results(file, quick=False, fresh=True).has("cells", "6.5M fixed", "rlox")


def test_the_quick_run_takes_the_setting_that_is_fastest_on_its_machine() -> None:
    measured = {"trl-autocast": pair("trl-autocast", 2.0), "trl-bf16": pair("trl-bf16", 3.0)}
    assert best_peer(measured, dict) == ("trl-autocast", "the fastest of 2 in the whole run on this machine")
    for whole in ({}, {"trl-bf16": pair("trl-bf16", 3.0)}):  # one setting alone compares nothing
        setting, reason = best_peer(whole, lambda: {"trl-bf16": 1.0, "trl-fp32": 0.5, "trl-autocast": 0.7})
        assert setting == "trl-fp32"
        assert reason.startswith("the fastest of 3 in a trial")


def test_every_cell_has_every_setting_of_trl_beside_it() -> None:
    assert PAIRS.keys() == CELLS.keys()
    assert all(set(TRL) <= set(systems) <= SYSTEMS.keys() for systems in PAIRS.values())


def test_float32_trl_needs_more_memory_than_bf16() -> None:
    case = CELLS["494M fixed"]
    assert needed_bytes(case.under("trl-fp32")) > needed_bytes(case.under("trl-bf16")) > 5e9


def test_every_part_is_parsed() -> None:
    assert parse([]).part == list(PARTS)
    assert parse(["--quick"]).part == ["cells"]
    for part in PARTS:
        assert parse([part]).part == [part]
    with pytest.raises(SystemExit) as exit_:
        parse(["grwoth"])
    assert exit_.value.code == 2


def test_every_cell_is_seen_beside_one_system_before_any_is_beside_two():
    rounds = in_rounds(PAIRS)
    assert sorted(rounds) == sorted((name, other) for name in PAIRS for other in PAIRS[name])
    assert rounds[: len(PAIRS)] == [(name, PAIRS[name][0]) for name in PAIRS]
    assert [name for name, _ in rounds[len(PAIRS) : 2 * len(PAIRS)]] == list(PAIRS)
