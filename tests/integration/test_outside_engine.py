"""An engine from a file of the user's, by `engine.kind`: training, evaluation and labelling go through it."""

import json
import re
from pathlib import Path

import pytest

from fakes.project import lay_out, oncurve

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
RECORDER = """
import json
from pathlib import Path

from lagging import Lagging, LaggingEngine

LOG = Path(__file__).with_name("log.jsonl")


class Recorded(LaggingEngine):
    def log(self, *said):
        with LOG.open("a") as file:
            file.write(json.dumps(said) + "\\n")

    def generate(self, prompts, draw, sampling=None, on_group=None, first_samples=None):
        self.log("generate", draw, list(first_samples))
        if draw == 1 and LOG.with_name("break").exists():
            raise RuntimeError("no more")
        return super().generate(prompts, draw, sampling, on_group, first_samples)

    def close(self):
        self.log("close")
        super().close()


class Recording(Lagging):
    def build(self, sampling, tokenizer, eos_ids, seed):
        return Recorded(super().build(sampling, tokenizer, eos_ids, seed).inner)


class Lame(Lagging):
    def build(self, sampling, tokenizer, eos_ids, seed):
        return object()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    (shown,) = re.findall(r"```python\n(# lagging\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "lagging.py").write_text(shown)
    (tmp_path / "recorder.py").write_text(RECORDER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def log(project: Path) -> list[list[object]]:
    said = [json.loads(line) for line in (project / "log.jsonl").read_text().splitlines()]
    (project / "log.jsonl").unlink()
    return said


def test_training_evaluation_and_labelling_go_through_it(project, monkeypatch, capfd):
    engine = "engine.kind=recorder.py:Recording"
    trained = oncurve(["train", "recipe.toml", engine, "--out", "run"], monkeypatch, capfd)
    assert trained.code == 0, trained.err
    assert "the engine is not exact, so clipping can bind from the 1st" in trained.out + trained.err
    said = log(project)
    assert [entry for entry in said if entry[0] == "generate"] == [["generate", draw, [0, 0]] for draw in range(3)]
    assert said[-1] == ["close"]
    evaluated = oncurve(["eval", "run", "--n", "2"], monkeypatch, capfd)
    assert evaluated.code == 0, evaluated.err
    said = log(project)
    assert [entry[:2] for entry in said if entry[0] == "generate"] == [["generate", -1]] * 2
    assert said[-1] == ["close"]
    label = ["reward-model", "label", "recipe.toml", engine, "--prompts", "2", "--out", "labels.jsonl"]
    labelled = oncurve([*label, "--kind", "preferences"], monkeypatch, capfd)
    assert labelled.code == 0, labelled.err
    assert log(project) == [["generate", 0, [0, 0]], ["close"]]


def test_it_is_closed_when_an_error_ends_the_run(project, monkeypatch, capfd):
    (project / "break").touch()
    command = ["train", "recipe.toml", "engine.kind=recorder.py:Recording", "--out", "run"]
    broken = oncurve(command, monkeypatch, capfd)
    assert broken.code == 1
    assert "RuntimeError: no more" in broken.err
    said = log(project)
    assert [entry[0] for entry in said] == ["generate", "generate", "close"]


def test_what_is_no_engine_is_refused(project, monkeypatch, capfd):
    refused = oncurve(["train", "recipe.toml", "engine.kind=recorder.py:Lame", "--out", "run"], monkeypatch, capfd)
    assert refused.code == 2
    assert "engine.kind: what it builds is no rollout engine: object lacks exact" in refused.err
    assert "follow and generate and prepare and measured" in refused.err


def test_the_default_is_the_local_engine_and_other_names_are_refused(project, monkeypatch, capfd):
    shown = oncurve(["config", "show", "recipe.toml"], monkeypatch, capfd)
    assert '[engine]\nkind = "local"' in shown.out
    refused = oncurve(["config", "show", "recipe.toml", "engine.kind=lokal"], monkeypatch, capfd)
    assert refused.code == 2
    assert "did you mean 'local'" in refused.err
