"""A run whose directory keeps the groups of some steps only: command, notebook, report, doctor, resume."""

import json
from pathlib import Path

import pytest

import oncurve
from fakes.project import Command
from oncurve.base.errors import ConfigError
from oncurve.report import RolloutFiles


def test_a_run_with_gaps_is_trained_reported_examined_and_read(command: Command) -> None:
    command("train", "recipe.toml", "run.steps=7", "rollouts.keep=every 3", "--out", "out").fine()
    assert RolloutFiles(Path("out")).steps() == (1, 3, 6, 7)
    assert len(Path("out/metrics.jsonl").read_text().splitlines()) == 7
    html = Path("out/report.html").read_text()
    assert "Step 1. " in html
    assert "Step 7. " in html
    examined = command("doctor", "out", "--json")
    assert json.loads(examined.out.splitlines()[-1])["steps"] == 7
    with oncurve.resume("out") as run:
        assert [group["step"] for group in run.groups()] == [7, 7]
        assert [group["step"] for group in run.groups(3)] == [3, 3]
        with pytest.raises(ConfigError) as caught:
            run.groups(5)
        assert str(caught.value) == (
            "out has no groups of step 5; rollouts.keep = 'every 3', and there are those of: 1, 3, 6 … 7"
        )
        run.report()


@pytest.mark.slow
def test_a_resume_may_change_what_is_kept_and_stays_exact(command: Command) -> None:
    settings = ["run.steps=6", "checkpoint.every=2"]
    assert command("train", "recipe.toml", *settings, "--out", "whole").code == 0
    assert command("train", "recipe.toml", "run.steps=4", "checkpoint.every=2", "--out", "out").code == 0
    said = command("resume", "out", "run.steps=6", "rollouts.keep=last 3").fine()
    assert "exact: the run goes on to the same numbers" in said.out
    assert RolloutFiles(Path("out")).steps() == (4, 5, 6)
    for step in (4, 5, 6):
        one, two = (RolloutFiles(Path(run)).path(step).read_bytes() for run in ("whole", "out"))
        assert one == two
    weights = "checkpoints/step-000006/learner.safetensors"
    assert Path("out", weights).read_bytes() == Path("whole", weights).read_bytes()
    assert command("export", "out").code == 0
