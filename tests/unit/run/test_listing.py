"""`oncurve runs` reads directories as they are, whatever state they are in, and changes none."""

import json
import os
import time
from pathlib import Path

from oncurve import durable
from oncurve.run import list_runs, table_of

CONFIG = "[run]\nsteps = 20\n[checkpoint]\nbest = 'eval/reward'\n"
LINES = ({"step": 0, "eval/reward": 0.1}, {"step": 4, "eval/reward": 0.5}, {"step": 8, "eval/reward": 0.4}, {"step": 9})


def lay_out(path: Path, *lines: dict[str, float], config: str = CONFIG, age: float = 0.0) -> Path:
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config)
    (path / "run.json").write_text("{}")
    (path / ".lock").write_bytes(b"")
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path / "metrics.jsonl", (time.time() - age,) * 2)
    return path


def test_runs_are_listed_with_state_step_best_and_age_the_last_first(tmp_path: Path) -> None:
    lay_out(tmp_path / "a" / "stopped", *LINES, age=7200)
    lay_out(tmp_path / "finished", {"step": 20}, age=200000)
    durable.write_directory(tmp_path / "finished" / "model", {"x": b"1"})
    lay_out(tmp_path / "damaged", config="[run", age=70)
    (tmp_path / "no run").mkdir()
    held = durable.hold(lay_out(tmp_path / "running", *LINES[:1]) / ".lock", b"")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    try:
        found = list_runs(tmp_path)
    finally:
        os.close(held)
    assert [(run.path.name, run.state, run.step, run.steps) for run in found] == [
        ("running", "running", 0, 20),
        ("damaged", "damaged", 0, None),
        ("stopped", "stopped", 9, 20),
        ("finished", "finished", 20, 20),
    ]
    best = "eval/reward 0.5 at 4 (its checkpoint is gone)"
    assert [run.cells()[3:] for run in found[1:]] == [("-", "1 min"), (best, "2 h"), ("-", "2 d")]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert table_of(found).splitlines()[3].split("  ")[-1] == "2 h"
    assert json.loads(json.dumps([run.to_json() for run in found]))[2]["best_step"] == 4
    (tmp_path / "a/stopped/checkpoints/step-000004").mkdir(parents=True)
    assert list_runs(tmp_path / "a")[0].cells()[3] == "eval/reward 0.5 at 4"


def test_a_run_is_listed_by_itself_and_what_is_inside_of_one_is_not(tmp_path: Path) -> None:
    lay_out(tmp_path / "run", *LINES)
    lay_out(tmp_path / "run" / "inner")
    assert [run.path for run in list_runs(tmp_path / "run")] == [tmp_path / "run"]
    assert [run.path for run in list_runs(tmp_path)] == [tmp_path / "run"]
