"""`cluster.kind = "ray"` from the command line: the bits of `host`, whatever is killed, and what is refused."""

import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fakes.calls import Counted
from fakes.killed_runs import compare, finish, kill_all, metrics_of, said_by, start, until_checkpoints
from fakes.project import refused
from fakes.tables import table
from fakes.toy_cluster import toy_cluster
from fakes.waiting import until
from oncurve.base.errors import ConfigError
from oncurve.processes.fleets import ProcessEnded, RayFleet, ray_fleet
from oncurve.processes.fleets.devices import Gpus
from oncurve.processes.fleets.ray_session import SESSION

ray_is_here = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
SETTINGS = table("ray_runs", "settings")
RAY = ["cluster.kind=ray", *SETTINGS]
HOST = ["cluster.kind=host", *SETTINGS]


@ray_is_here
@pytest.mark.parametrize(("settings", "words"), table("ray_runs", "addresses"))
def test_an_address_at_which_there_is_no_ray_is_refused(command, settings, words) -> None:
    refused(command("train", "recipe.toml", *RAY, "cluster.learner_ranks=2", *settings, "--out", "out"), *words)


def test_where_ray_is_not_installed_the_command_to_install_it_is_said(command, monkeypatch) -> None:
    monkeypatch.setattr("oncurve.cluster.settings.find_spec", lambda name: None)
    said = command("train", "recipe.toml", *RAY, "--out", "out")
    refused(said, "cluster.kind", "pip install 'oncurve[cluster]'")


def test_one_file_imports_ray() -> None:
    source = Path(__file__).parents[2] / "src" / "oncurve"
    found = [
        path.name for path in source.rglob("*.py") if "import ray" in path.read_text() or "from ray" in path.read_text()
    ]
    assert found == ["ray_session.py"]


@ray_is_here
@pytest.mark.slow
def test_a_run_on_ray_some_of_whose_processes_are_killed_is_the_run_of_one_process(project: Path) -> None:
    """Its own Ray is reached from this machine alone."""
    steps = 16
    finish("train", "recipe.toml", *HOST, f"run.steps={steps}", "--out", "one")
    more = ["cluster.rollout_workers=1", "cluster.learner_ranks=2", f"run.steps={steps}"]
    process = start("train", "recipe.toml", *RAY, *more, "--out", "two")
    until_checkpoints(process, project / "two", 1)
    own = psutil.Process(process.pid)
    addresses = [
        each.laddr.ip
        for one in (own, *own.children(recursive=True))
        for each in one.net_connections("inet")
        if each.status == psutil.CONN_LISTEN or (each.type == socket.SOCK_DGRAM and not each.raddr)
    ]
    assert len(addresses) > 5
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    both = kept(process)
    assert len(both) == 2
    for one in both:
        one.kill()
    said = said_by(process)
    assert "An update is made by 2 processes of a Ray cluster with 1 thread each" in said
    assert "a worker was lost: it was killed by signal SIGKILL" in said
    assert "rank 1 was lost: it was killed by signal SIGKILL" in said
    assert "raylet" not in said
    assert "(pid=" not in said
    compare(project / "one", project / "two", steps)
    first = metrics_of(project / "two")[0]
    assert (first["cluster/ranks"], first["cluster/workers_alive"]) == (2, 1)
    assert (first["cluster/ranks_lost"], first["cluster/shards_redone"]) == (0, 0)


@ray_is_here
@pytest.mark.slow
def test_a_run_that_is_killed_on_host_and_on_ray_goes_on_with_other_processes_to_the_same_bits(project: Path) -> None:
    """No process of a killed run is left, nor one of its Ray."""
    same = [*SETTINGS, "cluster.lag=2", "run.steps=7"]
    finish("train", "recipe.toml", "cluster.kind=host", *same, "--out", "one")
    begin = ["train", "recipe.toml", *same, "--out", "two"]
    for kind, workers, ranks, count in (("host", 1, 2, 2), ("ray", 2, 2, 4)):
        processes = [f"cluster.kind={kind}", f"cluster.rollout_workers={workers}", f"cluster.learner_ranks={ranks}"]
        process = start(*begin, *processes)
        until_checkpoints(process, project / "two", count)
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("raylet" in child.name() for child in children) == (kind == "ray")
        kill_all(process)
        begin = ["resume", "two"]
    said = finish(*begin, "cluster.kind=host", "cluster.rollout_workers=1", "cluster.learner_ranks=3")
    assert "of a Ray cluster" not in said
    assert "exact: the run goes on to the same numbers" in said
    compare(project / "one", project / "two", 7)


FSDP = ["cluster.sharding=fsdp", "cluster.learner_ranks=2"]


@ray_is_here
@pytest.mark.slow
def test_a_model_that_is_divided_among_ranks_on_ray_has_the_run_of_host_and_outlives_a_rank(project: Path) -> None:
    steps = 5
    finish("train", "recipe.toml", *HOST, *FSDP, f"run.steps={steps}", "--out", "one")
    arguments = ["train", "recipe.toml", *RAY, *FSDP, "cluster.rollout_workers=1", f"run.steps={steps}"]
    process = start(*arguments, "--out", "two")
    until_checkpoints(process, project / "two", 2)
    rank = next(each for each in kept(process) if is_rank(each))
    rank.kill()
    said = said_by(process)
    assert "its shard of the model with it: rank 1: it was killed by signal SIGKILL; the run goes back to" in said
    assert "Traceback" not in said
    compare(project / "one", project / "two", steps)


def is_rank(process: psutil.Process) -> bool:
    """Whether a process computes updates: it is connected with the run's own process over the network."""
    return any(each.family == socket.AF_INET for each in process.net_connections("tcp"))


@ray_is_here
@pytest.mark.slow
def test_ranks_that_do_not_see_the_folder_of_the_run_are_refused(project: Path) -> None:
    """A rank whose class has another view of the files stands in for another machine."""
    (project / "elsewhere.py").write_text(
        "from oncurve.advantages import GroupAdvantage\n"
        "from oncurve.cluster.sharding.shard_learner import ShardLearner\n"
        "class Own(GroupAdvantage):\n    pass\n"
        "ShardLearner.sees = staticmethod(lambda file: False)\n"
    )
    arguments = ["train", "recipe.toml", *RAY, *FSDP, "advantage.kind=elsewhere.py:Own", "--out", "two"]
    said = said_by(start(*arguments), 2)
    assert "rank 1 on another machine does not see this folder; choose an --out" in said
    assert not (project / "two").exists()


def kept(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The processes that compute for a run on Ray, the oldest first."""
    found = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "fleets.serving" in " ".join(child.cmdline())
    ]
    return sorted(found, key=lambda child: child.create_time())


@ray_is_here
@pytest.mark.slow
def test_processes_of_another_torch_are_refused_with_both_in_the_message(project: Path) -> None:
    """A run that takes itself for one with another torch; its processes see the truth."""
    arguments = ["train", "recipe.toml", *RAY, "cluster.learner_ranks=2", "--out", "out"]
    code = f"""
import sys
from oncurve import cli
from oncurve.processes.fleets import serving
true = serving._versions
serving._versions = lambda: true() | {{"torch": "2.99.0"}}
sys.argv = ["oncurve", *{arguments!r}]
sys.exit(cli.main())
"""
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240)
    assert run.returncode != 0
    assert f"has torch {torch.__version__}, and the run has 2.99.0: their bits may differ; use the same" in run.stderr
    assert "Traceback" not in run.stderr


@ray_is_here
@pytest.mark.slow
@pytest.mark.parametrize("part", ["machines_come_and_go", "gpus_for_each", "a_ray_of_its_own_first"])
def test_ray_in_a_process_that_has_had_no_other_ray(part: str) -> None:
    code = f"from integration.test_ray_runs import {part}; {part}()"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True, timeout=400)


def machines_come_and_go() -> None:
    """Places without a machine wait, and a machine that dies is named."""
    ray_fleet.ROOM_SECONDS = 5.0
    with toy_cluster(2) as toy, RayFleet(Counted, 3, address=toy.address) as fleet:
        for order, count in (("", 2), ("add", 3)):
            if order:
                toy.tell(order)
            until(lambda: len(fleet.up()) >= count, 90.0)  # noqa: B023
            time.sleep(0 if order else 5.0)
            assert len(fleet.settled(60.0)) == count, fleet.up()
        toy.tell("remove 2")
        events = list[Any]()
        until(lambda: bool(events.extend(fleet.wait(1.0)) or events), 60.0)  # type: ignore[func-returns-value]
        assert isinstance(events[0], ProcessEnded), events
        assert any(words in events[0].cause for words in ("its machine", "the connection to the process")), events
        living = fleet.settled(1.0)
        assert len(living) == 2, living
        fleet.call(living[0], "add", b"")
        assert fleet.wait(10.0)[0].value == 1


def gpus_for_each() -> None:
    """Each process has a GPU, and none the one that the run computes on."""
    with toy_cluster(1, gpus=2) as toy:
        gpus = Gpus(("1", "0"), ("H200", "H200"), "cpu")
        with RayFleet(Counted, 1, address=toy.address, gpus=gpus, each=1) as fleet:
            (process,) = fleet.settled(120.0)
            number = fleet.call(process, "seen")
            found = list[Any]()
            until(lambda: bool(found.extend(fleet.wait(0.5)) or found), 60.0)  # type: ignore[func-returns-value]
            assert [(event.number, event.value) for event in found] == [(number, "0")]
        nowhere = Gpus(("7",), ("H200",), "cpu")
        with pytest.raises(ConfigError, match="computes on GPU 7, which Ray cannot keep"):
            RayFleet(Counted, 1, address=toy.address, gpus=nowhere, each=1)
        SESSION.end()  # Ray ends a process that is connected to a cluster when that goes


def a_ray_of_its_own_first() -> None:
    """A process that has started a Ray of its own cannot use another one, and says so. Its folder is private."""
    before = set(Path("/tmp").glob("oncurve-ray-*"))
    with RayFleet(Counted, 1) as fleet:
        assert len(fleet.settled(120.0)) == 1
        made = set(Path("/tmp").glob("oncurve-ray-*")) - before
        assert {folder.stat().st_mode & 0o777 for folder in made} == {0o700}
    with (
        toy_cluster(1) as toy,
        pytest.raises(ConfigError, match="uses a Ray of its own already"),
    ):
        RayFleet(Counted, 1, address=toy.address)
