"""Training with a language model's scores: a limit that is reached ends the run in order, and a resume is exact."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.chat_server import ChatServer, Says
from fakes.project import RECIPE, Command
from oncurve.report import RolloutIndex

pytestmark = pytest.mark.slow


def says(message: str, number: int) -> Says:
    return Says("what?" if message.endswith("7") else json.dumps({"score": len(message) % 7 / 6}))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(says) as server:
        yield server


@pytest.fixture
def project(project: Path, server: ChatServer) -> Path:
    judged = 'kind = "model_judge"\nname = "grader"\nmodel = "m"\nfield = "score"\n'
    judged += f'url = "{server.url}"\ntemplate = "{{{{ prompt }}}}: {{{{ completion }}}}"\n'
    Path("recipe.toml").write_text(f"{RECIPE}\n[[rewards]]\n{judged}")
    return project


def test_a_limit_ends_the_run_in_order_and_the_resumed_run_is_the_unbroken_one(
    command: Command, server: ChatServer
) -> None:
    assert command("train", "recipe.toml", "--out", "whole").code == 0
    first = len(server.asked)
    assert first == len(set(server.messages))  # equal requests are sent once
    server.asked.clear()

    said = command("train", "recipe.toml", "rewards.1.max_requests=12", "--out", "out")
    assert said.code == 2
    assert "oncurve: reward grader: the spending limit is reached: max_requests = 12" in said.err
    assert "reward grader sends completion, prompt to m at" in " ".join(said.out.split())
    assert "oncurve resume out" in said.err
    assert len(server.asked) == 12
    assert len(list(Path("out/checkpoints").glob("step-*"))) == 1

    config = Path("out/config.toml")
    config.write_text(config.read_text().replace("max_requests = 12", "max_requests = 1000"))
    command("resume", "out").fine()
    assert len(server.asked) == first
    assert len(set(server.messages)) == first  # nothing was paid for twice
    name = "checkpoints/step-000003/learner.safetensors"
    assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()
    assert "grader" in str(list(RolloutIndex(Path("out")).groups(1)))


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_an_evaluation_that_is_repeated_pays_for_nothing_twice(
    command: Command, server: ChatServer, finished: bool
) -> None:
    words = ("data.eval_fraction=0.4", "eval.every=0", "rewards.0={kind='exact'}")
    assert command("train", "recipe.toml", *words, "--out", "out").code == 0
    if not finished:
        shutil.rmtree("out/model")
    kept = Path("out/replies/grader.jsonl").read_bytes()
    server.asked.clear()
    first = command("eval", "out", "--n", "2")
    asked = len(server.asked)
    assert (first.code, asked > 0) == (0, True), first.err
    assert len(Path("out/eval_replies/grader.jsonl").read_text().splitlines()) == asked
    again = command("eval", "out", "--n", "2")
    assert (again.out, len(server.asked)) == (first.out, asked)
    with open("out/eval_replies/.lock") as lock:  # another evaluation goes on
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = Path("out/eval_replies/grader.jsonl").read_bytes()
        assert command("eval", "out", "--n", "2").out == first.out
        assert Path("out/eval_replies/grader.jsonl").read_bytes() == before
    assert Path("out/replies/grader.jsonl").read_bytes() == kept  # what training was told does not change
    if not finished:
        assert command("resume", "out").code == 0
