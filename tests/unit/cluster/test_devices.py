"""Which GPU each process gets, and processes that get theirs: with a processor's tensors, because no GPU is needed."""

import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from fakes.calls import Seeing
from fakes.deadly import make_deadly
from fakes.learning import finished
from fakes.tables import table
from fakes.tiny_policy import random_groups, tiny_model
from fakes.vllm_server import server_program, tiny_llama
from oncurve.base.errors import ConfigError
from oncurve.cluster import HostCluster
from oncurve.cluster.ranks import FleetLearner
from oncurve.cluster.vllm.server import command_line
from oncurve.learner import state_of
from oncurve.processes.fleets import HostFleet, ProcessEnded, Replied
from oncurve.processes.fleets.devices import Gpus, memory_share, placed


def gpus(count: int, *names: str) -> Gpus:
    return Gpus(tuple("abcdefgh"[:count]), names or ("H200",) * count, "cpu")


@pytest.mark.parametrize(("ranks", "workers", "each", "count", "of_ranks", "of_workers"), table("devices", "places"))
def test_rank_0_has_the_first_gpu_the_other_ranks_the_next_and_workers_the_rest(
    ranks: int, workers: int, each: int, count: int, of_ranks: list[str], of_workers: list[str]
) -> None:
    found = placed(gpus(count), ranks, workers, each)
    assert (found.ranks, found.workers) == (tuple(of_ranks), tuple(of_workers))


def test_too_few_gpus_are_refused_with_what_is_needed_and_what_to_lower() -> None:
    words = r"2 ranks with a GPU each and 3 workers with 1 need 5, and this machine has 4; .*cluster\.rollout_gpus=0"
    with pytest.raises(ConfigError, match=words):
        placed(gpus(4), 2, 3, 1)
    with pytest.raises(ConfigError, match="1 rank with a GPU each and 1 worker with 0 need 1, and this machine has 0"):
        placed(gpus(0), 1, 1, 0)


def answers(fleet: HostFleet) -> list[Any]:
    up = fleet.settled(60.0)
    numbers = [fleet.call(process, "seen") for process in up]
    found: dict[int, Any] = {}
    deadline = time.monotonic() + 60
    while len(found) < len(numbers) and time.monotonic() < deadline:
        found |= {event.number: event.value for event in fleet.wait(0.5) if isinstance(event, Replied)}
    return [found[number] for number in numbers]


@pytest.mark.slow
def test_each_place_sees_its_own_gpus_also_after_a_death_and_the_nursery_none() -> None:
    with HostFleet(Seeing, 2, gpus=("3", "5,6")) as fleet:
        assert answers(fleet) == [("", "3"), ("", "5,6")]
        fleet.kill(fleet.up()[1], "enough")
        deadline = time.monotonic() + 60
        while not any(isinstance(event, ProcessEnded) for event in fleet.wait(0.5)):
            assert time.monotonic() < deadline
        assert answers(fleet) == [("", "3"), ("", "5,6")]


@given(st.floats(0, 1), st.floats(0, 2), st.integers(1, 4))
def test_servers_on_the_learners_card_get_what_training_leaves(free: float, needed: float, servers: int) -> None:
    """A quarter of the card at least, unless that is not free; a hundredth may be lost to rounding."""
    share = memory_share(free * 80e9, 80e9, needed * 80e9, servers)
    exact = min(0.9 * free, max(1 - needed, 0.25)) / servers
    assert exact - 0.0101 < share <= exact + 1e-9
    assert memory_share(80e9, 80e9, math.inf, servers) == memory_share(80e9, 80e9, 80e9, servers)


@pytest.mark.parametrize(("each", "share"), [(0, "0.30"), (1, None)])
def test_a_server_takes_a_share_of_the_card_where_it_is_the_learners(
    monkeypatch: pytest.MonkeyPatch, each: int, share: str | None
) -> None:
    """The user's arguments come after it, and so overrule it."""
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (70e9, 80e9))
    own = ("--max-model-len", "64")
    cluster = HostCluster(engine="vllm", rollout_workers=2, rollout_gpus=each, vllm_arguments=own)
    settings = cluster._servers(tiny_llama(0), gpus(3), lambda: 32e9)
    assert settings["arguments"] == ((("--gpu-memory-utilization", share) if share else ()) + own)


def test_a_vllm_server_divides_the_model_among_the_gpus_of_its_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    words = command_line(Path("model"), 8000, "bfloat16", 2, ("--max-model-len", "64"))
    assert words[-4:] == ["--tensor-parallel-size", "2", "--max-model-len", "64"]
    cluster = HostCluster(engine="vllm", rollout_workers=2, rollout_gpus=2)
    assert cluster.placement(gpus(5)).workers == ("b,c", "d,e")
    assert cluster._servers(tiny_llama(0), gpus(5), lambda: 0.0)["gpus"] == 2


@pytest.mark.slow
def test_ranks_that_are_placed_and_build_their_learner_after_the_move_make_the_updates_of_one_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("oncurve.cluster.making.seen_by", lambda model: gpus(2))
    make = partial(make_deadly, tmp_path, os.getpid(), torch.float32, learning_rate=0.01)
    found = []
    for count in (1, 2):
        learner = HostCluster(learner_ranks=count, wait_seconds=60.0).learner(make, [tiny_model()])
        assert isinstance(learner, FleetLearner)
        try:
            for step in range(3):
                batch = finished(learner.local, random_groups(count=4, size=4, seed=step))
                metrics = learner.update(learner.score(batch, frozenset({"old", "reference"}))).metrics.result()
            assert metrics["cluster/ranks_lost"] == 0 if count == 2 else "cluster/ranks" not in metrics
            found.append({name: tensor.clone() for name, tensor in state_of(learner.local)[1].items()})
        finally:
            learner.close()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
