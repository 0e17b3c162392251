"""The doctor's rules of rates over runs at measured learning rates: those of docs/learning-rates.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from oncurve.doctor.case import Case
from oncurve.doctor.examine import examine

RATES = json.loads(Path(__file__).with_name("measured_rates.json").read_text(encoding="utf-8"))


def alarms(curves: dict[str, list[float]], prompts: int) -> set[str]:
    """Return the rules that hold after some step of a run, seen as its command sees it."""
    steps = range(1, len(curves["reward/mean"]) + 1)
    lines = [{"step": step, **{key: values[step - 1] for key, values in curves.items()}} for step in steps]
    settings = {"data": {"prompts_per_step": prompts}}
    seen = (Case(lines[:step][-40:], lines[:5], (), settings) for step in steps)
    return {finding.rule for case in seen for finding in examine(case)}


@pytest.mark.parametrize("row", RATES, ids=lambda row: f"{row['case']} {row['rate']}")
def test_rates_that_are_too_high_have_an_alarm_and_no_others_have_one(row: dict[str, Any]) -> None:
    found = {rule for curves in row["runs"] for rule in alarms(curves, row["prompts_per_step"])}
    assert bool({"rate-too-high", "kl-runaway"} & found) == (row["verdict"] == "too high")
    assert not {"rate-too-low", "rate-perhaps-too-low"} & found
