"""An engine from a file of the user's, by `engine.kind`: training, evaluation and labelling go through it."""

import json
import re
from pathlib import Path

import pytest

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

"""


@pytest.fixture
def project(project: Path) -> Path:
    (shown,) = re.findall(r"```python\n(# lagging\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (project / "lagging.py").write_text(shown)
    (project / "recorder.py").write_text(RECORDER)
    return project


def log(project: Path) -> list[list[object]]:
    said = [json.loads(line) for line in (project / "log.jsonl").read_text().splitlines()]
    (project / "log.jsonl").unlink()
    return said


def test_training_evaluation_and_labelling_go_through_it(project, command):
    engine = "engine.kind=recorder.py:Recording"
    trained = command("train", "recipe.toml", engine, "--out", "run").fine()
    assert "the engine is not exact, so clipping can bind from the 1st" in trained.out + trained.err
    said = log(project)
    assert [entry for entry in said if entry[0] == "generate"] == [["generate", draw, [0, 0]] for draw in range(3)]
    assert said[-1] == ["close"]
    command("eval", "run", "--n", "2").fine()
    said = log(project)
    assert [entry[:2] for entry in said if entry[0] == "generate"] == [["generate", -1]] * 2
    assert said[-1] == ["close"]
    label = ["reward-model", "label", "recipe.toml", engine, "--prompts", "2", "--out", "labels.jsonl"]
    command(*label, "--kind", "preferences").fine()
    assert log(project) == [["generate", 0, [0, 0]], ["close"]]


def test_it_is_closed_when_an_error_ends_the_run(project, command):
    (project / "break").touch()
    broken = command("train", "recipe.toml", "engine.kind=recorder.py:Recording", "--out", "run")
    assert broken.code == 1
    assert "RuntimeError: no more" in broken.err
    said = log(project)
    assert [entry[0] for entry in said] == ["generate", "generate", "close"]
