"""A model that is divided among ranks, some of which are lost: the run goes back by itself, to the same bits."""

import json
import re
from pathlib import Path

import pytest

import oncurve
from fakes.killed_runs import compare, finish, said_by, start
from fakes.tables import table

DEADLY = """
import os, signal
from pathlib import Path

from oncurve.advantages import GroupAdvantage
from oncurve.cluster.sharding.shard_learner import ShardLearner

ORDERS = Path(__file__).parent / "orders"


class Own(GroupAdvantage):
    pass


def obey(learner, place):
    for order in sorted(ORDERS.glob(f"{place}-{learner.optimizer.steps}-*")) if learner.rank else ():
        order.unlink()
        os.kill(os.getpid(), signal.Signals[order.name.split("-")[2]])


def deadly(place, method, after=False):
    def wrapped(self, *arguments):
        if not after:
            obey(self, place)
        found = method(self, *arguments)
        if after:
            obey(self, place)
        return found

    return wrapped


ShardLearner.accumulate_part = deadly("before", ShardLearner.accumulate_part)
ShardLearner.apply = deadly("in", ShardLearner.apply)
ShardLearner.publish = deadly("after", ShardLearner.publish, after=True)
ShardLearner.save = deadly("saving", ShardLearner.save, after=True)
"""
"""A component of the user, whose file every process of the run imports. A file `PLACE-UPDATES-SIGNAL-NUMBER` in the
folder `orders` is for a rank other than rank 0 that has made so many updates; the rank removes it and obeys."""

SETTINGS = table("lost_ranks", "settings")
TRAIN = ["train", "recipe.toml", *SETTINGS]


@pytest.fixture
def project(project: Path) -> Path:
    Path("deadly.py").write_text(DEADLY)
    Path("orders").mkdir()
    return project


def order(project: Path, place: str, updates: int, number: str, count: int = 1) -> None:
    for index in range(count):
        (project / "orders" / f"{place}-{updates}-{number}-{index}").touch()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "cause"), [("SIGKILL", "SIGKILL"), ("SIGSTOP", "silent for 3 seconds")])
def test_a_run_whose_ranks_are_lost_goes_back_by_itself_to_the_same_bits(
    project: Path, number: str, cause: str
) -> None:
    silence = ["cluster.silence_seconds=3"] if number == "SIGSTOP" else []
    finish(*TRAIN, *silence, "--out", "one")
    for place, updates in (("before", 0), ("in", 2), ("after", 4)):
        order(project, place, updates, number)
    said = said_by(start(*TRAIN, *silence, "--out", "two"))
    assert list((project / "orders").iterdir()) == []
    assert said.count("a rank was lost, and its shard of the model with it: rank 1: ") == 3
    assert said.count(cause) == 3
    for where in ("to its beginning", "to its checkpoint of step 2", "to its checkpoint of step 3"):
        assert f"; the run goes back {where} and on from there" in said
    assert said.count("An update is made by 2 processes") == 1
    assert "Traceback" not in said
    assert "stopped by" not in said
    compare(project / "one", project / "two", 6)


@pytest.mark.slow
def test_a_run_that_gets_no_further_ends_with_the_cause_and_a_resume_goes_on_with_other_ranks(project: Path) -> None:
    order(project, "before", 2, "SIGKILL", count=4)
    said = said_by(start(*TRAIN, "--out", "two"), 1)
    assert said.count("the run goes back to its checkpoint of step 2") == 3
    assert re.search(r"stopped by LostStateError; to continue after step 2: .*oncurve resume two$", said, re.MULTILINE)
    assert "it was killed by signal SIGKILL. The run goes on from its last checkpoint with `oncurve resume`" in said
    assert "Traceback" not in said
    said = finish("resume", "two", "cluster.learner_ranks=3")
    assert "exact up to step 2" in said
    assert len(list((project / "two" / "checkpoints").glob("step-*"))) == 6


@pytest.mark.slow
def test_a_rank_that_is_lost_with_a_stop_signal_ends_the_run_in_order(project: Path) -> None:
    """A scheduler that ends a job sends its signal to all processes."""
    order(project, "before", 2, "SIGKILL")
    (project / "stopping.py").write_text(
        "import os, signal, sys\n"
        "from oncurve.cluster.sharding.shard_learner import ShardLearner\n"
        "real = ShardLearner.accumulate_part\n"
        "def stopping(self, part):\n"
        "    if self.rank == 0 and self.optimizer.steps == 2:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return real(self, part)\n"
        "ShardLearner.accumulate_part = stopping\n"
        "sys.argv = ['oncurve', *sys.argv[1:]]\n"
        "from oncurve.cli import main\n"
        "main()\n"
    )
    said = said_by(start(*TRAIN, "--out", "two", begin=["stopping.py"]), 143)
    assert "stopped by SIGTERM; to continue after step 2: oncurve resume two" in said
    assert "; the run goes back" not in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_run_in_python_goes_back_too_and_its_metrics_are_those_of_each_step_once(project: Path) -> None:
    settings = {"cluster": {"kind": "host", "sharding": "fsdp", "learner_ranks": 2}}
    settings |= {"checkpoint": {"every": 2}, "advantage": {"kind": "deadly.py:Own"}}
    order(project, "saving", 2, "SIGKILL")
    order(project, "before", 3, "SIGKILL")
    with oncurve.train("recipe.toml", steps=4, out="two", settings=settings) as run:
        assert [line["step"] for line in run.metrics] == [1, 2, 3, 4]
        assert list((project / "orders").iterdir()) == []
        logged = [json.loads(line) for line in (project / "two" / "metrics.jsonl").read_text().splitlines()]
        assert [line["reward/mean"] for line in run.metrics] == [line["reward/mean"] for line in logged]
        assert run.evaluate(0).held_out is False
