"""`oncurve resume DIR section.key=value`: changes are said and kept, what came before stays, the rest is refused."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

import oncurve
from fakes.project import Command
from fakes.tables import table

pytestmark = pytest.mark.slow

RATE = "learner.learning_rate=0.01"


@pytest.fixture(scope="module")
def laid_out(laid_out: Path) -> Path:
    """A project with a finished run of two steps in `short`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(laid_out)
        oncurve.train("recipe.toml", out="short", steps=2).close()
    return laid_out


@pytest.fixture
def site(laid_out: Path) -> Path:
    """The project itself; `run` is a copy of `short`."""
    for name in ("run", "other"):
        shutil.rmtree(laid_out / name, ignore_errors=True)
    return shutil.copytree(laid_out / "short", laid_out / "run").parent


def weights(out: str, step: int) -> bytes:
    return Path(out, f"checkpoints/step-{step:06d}/learner.safetensors").read_bytes()


def files(out: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(out).rglob("*") if path.is_file()}


def settings(path: str) -> tuple[int, float]:
    table = tomllib.loads(Path(path).read_text())
    return table["run"]["steps"], table["learner"]["learning_rate"]


def test_more_steps_go_on_exactly_and_nothing_of_the_first_run_is_overwritten(command: Command) -> None:
    before = {name: Path("run", name).read_bytes() for name in ("config.toml", "metrics.jsonl")}
    model = Path("run/model/model.safetensors").read_bytes()
    said = command("resume", "run", "run.steps=4").fine()
    assert "exact: the run goes on to the same numbers, with run.steps = 4 (was 2)" in said.out
    assert command("train", "recipe.toml", "run.steps=4", "--out", "other").code == 0
    assert weights("run", 4) == weights("other", 4)
    assert Path("run/history/config-000002.toml").read_bytes() == before["config.toml"]
    assert Path("run/metrics.jsonl").read_bytes().startswith(before["metrics.jsonl"])
    assert Path("run/model-000002/model.safetensors").read_bytes() == model
    assert Path("run/model/model.safetensors").read_bytes() != model
    assert command("resume", "run").out.startswith("run is finished: all 4 steps are done")


def test_a_rate_that_changes_is_exact_up_to_its_step_and_stays(command: Command) -> None:
    said = command("resume", "run", "run.steps=4", RATE)
    assert "exact up to step 2; from step 3 on with learner.learning_rate = 0.01 (was 0.001), run.steps" in said.out
    assert (settings("run/history/config-000002.toml"), settings("run/config.toml")) == ((2, 0.001), (4, 0.01))
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["optim/learning_rate"] for line in lines] == [0.001, 0.001, 0.01, 0.01]
    (note,) = json.loads(Path("run/environment.json").read_text())["changed"]
    assert note == {"after_step": 2, "what": ["learner.learning_rate = 0.01 (was 0.001)", "run.steps = 4 (was 2)"]}
    assert command("resume", "run", "run.steps=5").code == 0  # nothing is refused as a change later
    assert sorted(path.name for path in Path("run/history").iterdir()) == ["config-000002.toml", "config-000004.toml"]


REFUSED = table("resume_with_changes", "refused")


@pytest.mark.parametrize("word", REFUSED)
def test_what_cannot_change_is_refused_by_name_before_anything_is_loaded(
    command: Command, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files("run")
    monkeypatch.setattr("oncurve.models.loading.weights.ModelConfig.build", lambda *_: pytest.fail("loaded"))
    said = command("resume", "run", word)
    assert (said.code, REFUSED[word] in said.err, "Traceback" in said.err) == (2, True, False), said.err
    assert files("run") == before


def test_a_change_that_cannot_be_begun_leaves_the_run_as_it_was(command: Command) -> None:
    before = files("run")
    said = command("resume", "run", "run.steps=4", "rollout.max_new_tokens=100000", RATE)
    assert (said.code, "rollout.max_new_tokens" in said.err) == (2, True), said.err
    assert files("run") == before


def test_one_command_begins_continues_and_leaves_a_finished_run(command: Command) -> None:
    words = ("train", "recipe.toml", "--out", "other", "--resume-if-there", "run.steps=2")
    assert command(*words).code == 0
    assert weights("other", 2) == weights("short", 2)
    shutil.rmtree("other/model")
    shutil.rmtree("other/checkpoints/step-000002")
    assert "other: 0 of 2 steps are done" in command(*words).out  # it was killed before its first checkpoint
    assert weights("other", 2) == weights("short", 2)
    before = files("other")
    assert "other is finished: all 2 steps are done" in command(*words).out
    assert files("other") == before
    assert "run.seed: cannot change in a resume" in command(*words, "run.seed=1").err
    assert "with run.steps = 3 (was 2)" in command(*words[:-1], "run.steps=3").out
    assert command("train", "recipe.toml", "--resume-if-there").err.startswith("oncurve: --resume-if-there: name")
