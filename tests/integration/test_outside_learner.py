"""A learner from a file of the user's, by `learner.kind`: it wraps the local one, and a killed run goes on exactly."""

import json
import re
from pathlib import Path

import pytest

from fakes.tables import table
from oncurve import durable

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
VARIANTS = """
from pathlib import Path

from logged import Logged, LoggedLearner
from oncurve.learner import LearnerSettings


class Breaking(LoggedLearner):
    def update(self, minibatch):
        if self.updates == 1 and Path("break").exists():
            raise RuntimeError("no more")
        return super().update(minibatch)

    def close(self):
        Path("closed").touch()
        super().close()


class Breaks(Logged):
    def build(self, *parts, **more):
        made = super().build(*parts, **more)
        return Breaking(made.inner, made.log)


class Lame(Logged):
    def build(self, *parts, **more):
        return object()


class Unbuilt(LearnerSettings):
    pass
"""


@pytest.fixture
def project(project: Path) -> Path:
    (shown,) = re.findall(r"```python\n(# logged\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (project / "logged.py").write_text(shown)
    (project / "variants.py").write_text(VARIANTS)
    return project


@pytest.mark.slow
def test_a_run_with_it_that_broke_off_ends_as_one_with_the_local_learner(project, command):
    settings = ["learner.learning_rate=1e-3", "checkpoint.every=1"]
    command("train", "recipe.toml", *settings, "--out", "local").fine()
    (project / "break").touch()
    broken = command("train", "recipe.toml", "learner.kind=variants.py:Breaks", *settings, "--out", "run")
    assert broken.code == 1
    assert "RuntimeError: no more" in broken.err
    assert "The learner is Breaks, not the built-in one" in broken.out + broken.err
    assert "the memory of the run is not checked: the needs of Breaks are not known" in broken.out + broken.err
    assert (project / "closed").exists()
    assert [number for number, _ in durable.numbered(project / "run" / "checkpoints")] == [1]
    (project / "break").unlink()
    command("resume", "run").fine()
    model = "model/model.safetensors"
    assert (project / "local" / model).read_bytes() == (project / "run" / model).read_bytes()
    lines = [json.loads(line) for line in (project / "updates.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2, 3]
    record = durable.read_json(project / "run" / "checkpoints" / "step-000003" / "state.json")
    assert record["learner"]["updates"] == 3


@pytest.mark.parametrize(("kind", "said"), table("outside_learner", "refused"))
def test_what_is_no_learner_is_refused(project, command, kind, said):
    refused = command("train", "recipe.toml", f"learner.kind=variants.py:{kind}", "--out", "run")
    assert refused.code == 2
    assert said in refused.err
    assert not (project / "run").exists()


def test_a_checkpoint_of_the_other_learner_is_refused_in_words(project, command):
    command("train", "recipe.toml", "--out", "run").fine()
    recipe = project / "run" / "config.toml"
    text = recipe.read_text().replace('[learner]\nkind = "local"', '[learner]\nkind = "../logged.py:Logged"')
    recipe.write_text(text.replace("steps = 3", "steps = 4"))
    refused = command("resume", "run", "--changed", "--trust")
    assert refused.code == 1, refused.out
    assert "step-000003 lacks 'inner': a run with other settings wrote it" in refused.err
