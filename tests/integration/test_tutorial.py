"""The commands of docs/tutorial.md, one after another in one folder, as a reader would run them."""

import re
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from fakes.project import oncurve

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = ("run.steps=3", "data.prompts_per_step=4", "rollout.max_new_tokens=40", "rollout.group_size=4", "run.threads=1")
"""What the test puts after each training command: the page's sizes take minutes."""

TESTED_ELSEWHERE = ("oncurve demo",)


def blocks() -> list[tuple[str, str]]:
    return [(language, body) for language, body in BLOCK.findall(PAGE) if language in ("sh", "python", "toml")]


def command(line: str) -> list[str]:
    """The arguments of a line, small, and with the shipped model in the place of the hub's."""
    words = shlex.split(line)[1:]
    shipped = [f"model.path={files('oncurve') / 'models' / 'tiny'}"] if "sums.toml" in words else []
    if words[0] == "plan":
        return [*words, *shipped]
    if words[0] == "train":
        given = {word.partition("=")[0] for word in SMALL}
        kept = [word for word in words if word.partition("=")[0] not in given]
        return [*kept, *shipped, *SMALL, "eval.every=0"]
    return words


@pytest.mark.slow
def test_every_command_of_the_tutorial_runs_in_its_order(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    ran = []
    for language, body in blocks():
        named = re.match(r"# (\S+\.(?:py|toml))\n", body)
        if language != "sh":
            assert named is not None, body
            (tmp_path / named[1]).write_text(body, encoding="utf-8")
            continue
        for line in body.splitlines():
            if line.startswith("python "):
                done = subprocess.run([sys.executable, *shlex.split(line)[1:]], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
            elif line not in TESTED_ELSEWHERE:
                done = oncurve(command(line), monkeypatch, capfd)
                fine = (0, 1) if "doctor" in line else (0,)  # three steps of another model may be ill
                assert done.code in fine, (line, done.out, done.err)
            ran.append(line.split()[1])
    assert {"demo", "train", "doctor", "resume", "eval", "plan", "config"} <= set(ran)
    assert (tmp_path / "runs" / "sums" / "model" / "config.json").is_file()
