"""`oncurve export --to inspect` on a real run, read back and served by Inspect's own library.

`make inspect-check` makes an environment with the library, and names its interpreter by ONCURVE_INSPECT_PYTHON.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import oncurve
from fakes.project import Said, lay_out
from oncurve.base.errors import RunDirectoryError
from oncurve.report import RunRecord, inspect_log, read_run
from oncurve.run import export_logs
from oncurve.run.commands import exporting

Command = Callable[..., Said]
READER = Path(__file__).parents[1] / "fakes" / "inspect_reader.py"
REWARDS = [
    {"kind": "regex", "pattern": "w1", "processes": 1},
    {"kind": "python", "path": "reward.py:length", "weight": 0.5, "processes": 1},
]
FAULTY = """
def length(completion, answer):
    return float("nan") if len(completion) % 2 else float(len(completion))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with two rewards, one of which fails at some completions."""
    folder = lay_out(tmp_path_factory.mktemp("project"))
    (folder / "reward.py").write_text(FAULTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        oncurve.train("recipe.toml", out="run", steps=2, settings={"rewards": REWARDS}).close()
    return folder


def logs(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("20*_run_step*.json"))


def test_all_steps_or_one_are_written_beside_the_exports_of_the_model(command: Command) -> None:
    said = command("export", "run", "--to", "inspect")
    assert said.code == 0
    assert said.out.startswith("run/export/inspect   the rollouts of 2 steps, from 1 to 2, as logs of Inspect")
    assert [path.stem.rpartition("_")[2] for path in logs("run/export/inspect")] == ["step000001", "step000002"]
    assert command("export", "run", "--to", "inspect", "--step", "2").code == 0
    (one,) = logs("run/export/inspect-000002")
    assert one.read_bytes() == logs("run/export/inspect")[1].read_bytes()


def test_rollouts_that_a_run_removes_meanwhile_are_left_out(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree("run", tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    monkeypatch.chdir(tmp_path)
    Path("run/run.json").write_text("not json")

    def after_removal(record: RunRecord, step: int, run_id: str) -> dict[str, Any]:
        for file in Path("run/rollouts").glob("step-000001*"):
            file.unlink()
        return inspect_log(record, step, run_id)

    monkeypatch.setattr(exporting, "inspect_log", after_removal)
    assert export_logs(Path("run")).steps == (2,)
    assert len(logs("run/export/inspect")) == 1
    monkeypatch.setattr(exporting, "inspect_log", lambda *given: shutil.rmtree("run/rollouts") or inspect_log(*given))
    with pytest.raises(RunDirectoryError, match="removed these rollouts in the meantime"):
        export_logs(Path("run"), out=Path("none"))
    assert not Path("none").exists()


def test_the_library_reads_what_the_rollouts_hold_and_its_viewer_serves_it(command: Command, tmp_path: Path) -> None:
    python = os.environ.get("ONCURVE_INSPECT_PYTHON")
    if python is None:
        pytest.skip("ONCURVE_INSPECT_PYTHON names no interpreter with inspect_ai; `make inspect-check` makes one")
    folder = tmp_path / "logs"
    assert command("export", "run", "--to", "inspect", "--out", str(folder)).code == 0
    done = subprocess.run([python, str(READER), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["served"] == [path.name for path in logs(str(folder))]
    run, faults = read_run(Path("run")), 0
    for log in found["logs"]:
        assert (log["task"], log["status"]) == ("run", "success")
        groups = run.groups(log["step"])
        kept = [(group, each) for group in groups for each in group["completions"]]
        assert len(log["samples"]) == len(kept) == 8
        for sample, (group, each) in zip(log["samples"], kept, strict=True):
            assert (sample["input"], sample["text"]) == (group["prompt"]["text"], each["text"])
            assert sample["stop"] == {"eos": "stop", "length": "max_tokens"}[each["ended"]]
            assert sample["messages"] == ["user", "assistant"]
            assert sample["advantage"] == each["advantage"]
            parts = {name: value for name, value in each["parts"].items() if value is not None}
            total = {} if each["reward"] is None else {"total": each["reward"]}
            assert sample["scores"] == {**total, **parts}
            faults += each["reward"] is None
    assert faults > 0
