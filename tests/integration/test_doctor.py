"""`oncurve doctor` on runs of the built-in task that are ill, each in its own way, and on healthy ones."""

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fakes.started import start_process
from fakes.tables import table
from oncurve import durable
from oncurve.cli import app
from oncurve.config import load_config
from oncurve.doctor import diagnose
from oncurve.doctor.examine import Diagnosis
from oncurve.report import RolloutFiles
from oncurve.run import train_recipe

REWARDS = """
import time


def picky(completion, answer):
    return float(completion.strip().endswith("The answer is " + answer))


def long(completion):
    return min(1.0, len(completion) / 250)


def nines(completion):
    return completion.count("9") / max(1, len(completion))


def not_a_number(completion, answer):
    tried = "The answer is" in completion  # by the trial before the model loads
    return 1.0 if int(answer) % 2 or tried else float("nan")


def huge(completions, answer, size=1e30):  # its square overflows in the norm of the gradient
    values = [size if int(each) % 19 == 4 else 1.0 for each in answer]
    return [value * (index % 2) for index, value in enumerate(values)]


def too_large(completions, answer):
    return huge(completions, answer, 1e39)  # float32 ends at 3e38


def slow(completions):
    time.sleep(8)
    return [float("4" in completion) for completion in completions]
"""


def rewards(*names: str) -> str:
    """The setting `rewards` with these functions, `name:weight` where the weight is not 1, or the task's own."""
    tables = []
    for name, _, weight in (item.partition(":") for item in names):
        kind = 'kind = "task"' if name == "task" else f'kind = "python", path = "rewards.py:{name}", processes = 1'
        tables.append(f"{{ {kind}, weight = {weight or 1.0} }}")
    return f"rewards=[{', '.join(tables)}]"


ILL = {
    rule: (name, steps, [*([rewards(*given)] if given else []), *settings])
    for rule, (name, steps, given, settings) in table("doctor", "ill").items()
}
"""Ill runs by a rule that names it: the name, the number of steps, the settings that make it ill. Rules that look at
single steps' metrics, or at what stays as it is, have made records alone."""

HEALTHY = table("doctor", "healthy")
"""Presets with a seed each, on the built-in task."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, list[str]], Path]:
    """Trains a run of the built-in task once per session; its directory."""
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "rewards.py").write_text(REWARDS)

    def make(name: str, steps: int, settings: list[str], preset: str = "grpo") -> Path:
        recipe, out = folder / f"{name}.toml", folder / name
        if not out.exists():
            recipe.write_text(f'extends = ["task", "{preset}"]\n')
            small = ["run.threads=1", "model.dtype=float32", "data.prompts_per_step=8", "rollout.max_new_tokens=72"]
            small += [f"run.steps={steps}", "eval.every=0", "checkpoint.every=0"]
            with contextlib.chdir(folder):  # paths in settings are relative to the working directory
                assert train_recipe(*load_config(recipe, [*small, *settings]), out) is None
        return out

    return make


def found(diagnosis: Diagnosis) -> list[str]:
    return [course.finding.rule for course in diagnosis.present]


def alarms(diagnosis: Diagnosis) -> list[str]:
    courses = (*diagnosis.present, *diagnosis.past)
    return [course.finding.rule for course in courses if course.finding.level == "alarm"]


@pytest.mark.parametrize("rule", [pytest.param(r, marks=[] if r == "truncated" else pytest.mark.slow) for r in ILL])
def test_an_ill_run_has_its_illness_named(rule: str, made, capfd) -> None:
    diagnosis = diagnose(made(*ILL[rule]))
    assert rule in found(diagnosis)
    if diagnosis.present[0].finding.level == "alarm":
        assert not diagnosis.healthy
    shown = capfd.readouterr().out  # of the run, where this test was the first to need it
    if shown and rule not in ("length-correlation", "slow-rewards", "one-part-dominates"):
        assert f"{rule} (alarm): " in shown


@pytest.mark.slow
def test_a_run_among_busy_processes_is_told_so(made) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count how long threads wait for a processor")
    for _ in range(4 * (os.cpu_count() or 1)):
        start_process(sys.executable, "-c", "while True: pass")
    assert "crowded-processors" in found(diagnose(made("crowded", 4, [])))


@pytest.mark.slow
@pytest.mark.parametrize("preset", HEALTHY)
def test_a_healthy_run_has_no_alarm_at_any_step(preset: str, made) -> None:
    steps = 24 if preset == "grpo" else 14
    diagnosis = diagnose(made(f"healthy-{preset}", steps, ["learner.learning_rate=3e-4", *HEALTHY[preset]], preset))
    assert alarms(diagnosis) == []
    assert diagnosis.healthy


def run_doctor(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["doctor", *arguments])
    return done.exit_code, done.output


def test_the_command_prints_evidence_reason_and_changes_and_exits_with_1(made) -> None:
    out = made(*ILL["truncated"])
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
    code, text = run_doctor(str(out), "--json")
    assert code == 1
    assert "truncated (alarm), step 4" in text
    assert "cut off at rollout.max_new_tokens (6)" in " ".join(text.split())
    said = json.loads(text.splitlines()[-1])
    assert (said["steps"], said["healthy"], said["past"], said["damage"]) == (4, False, [], [])
    first = next(item for item in said["present"] if item["rule"] == "truncated")
    assert (first["level"], first["first_step"], first["last_step"]) == ("alarm", 4, 4)
    assert any("rollout.max_new_tokens" in change for change in first["changes"])
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*")) == before


def test_memory_near_its_limit_is_found_by_what_the_environment_records(made, tmp_path: Path) -> None:
    out = made(*ILL["truncated"])
    for name in ("config.toml", "metrics.jsonl"):
        (tmp_path / name).write_bytes((out / name).read_bytes())
    peak = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["memory/peak_bytes"]
    environment = json.loads((out / "environment.json").read_text())
    for limit, near in ((1.05 * peak, True), (1.2 * peak, False)):
        (tmp_path / "environment.json").write_text(json.dumps(environment | {"memory_bytes": limit}))
        assert ("memory-near-limit" in found(diagnose(tmp_path))) == near


def test_a_torn_or_damaged_directory_is_read_as_far_as_it_goes(made, tmp_path: Path) -> None:
    out = made(*ILL["truncated"])
    (tmp_path / "metrics.jsonl").write_bytes((out / "metrics.jsonl").read_bytes() + b'{"step": 5, "rew')
    (tmp_path / "config.toml").write_text("not [ toml")
    (tmp_path / "environment.json").write_text("[]")
    durable.write_file(RolloutFiles(tmp_path).path(4), gzip.compress(b'{"no": "group"}\nnot json\n'))
    code, text = run_doctor(str(tmp_path))
    assert code == 1
    assert "truncated (alarm), step" in text
    assert "environment.json holds no object" in text


def test_a_run_without_steps_is_no_illness_and_what_is_no_run_is_refused(made, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    assert run_doctor(str(tmp_path)) == (0, f"{tmp_path}: 0 steps, too few to tell (the rules need 3)\n")
    for wrong in (tmp_path / "none", tmp_path / "config.toml"):
        done = CliRunner().invoke(app, ["doctor", str(wrong)])
        assert "is not a folder" in str(done.exception)
