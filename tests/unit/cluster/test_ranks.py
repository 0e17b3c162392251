"""A learner on several processes: the bits of one process, whatever the number of ranks and whatever kills them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.deadly import PLACES, make_deadly, order, waiting
from fakes.learning import finished
from fakes.tiny_policy import random_groups
from oncurve import batching, learner as learners
from oncurve.batching import collate
from oncurve.cluster import HostCluster
from oncurve.cluster.ranks import FleetLearner, rank as ranks_of
from oncurve.parallel import FileMeeting, LostRankError, World
from oncurve.types import TrainBatch

pytestmark = pytest.mark.slow

State = dict[str, Tensor]
SCORED = frozenset({"old", "reference", "entropy"})


@pytest.fixture(autouse=True, scope="module")
def shards_of_few_tokens() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_of, "PASS_TOKENS", 0)
        yield


@pytest.mark.parametrize("most", [1, 2, 8, 64])
def test_shards_take_at_most_twice_as_long_as_one_and_are_as_many_as_that_allows(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_of, "PASS_TOKENS", 4)
    batch = collate(random_groups(count=5, size=4, seed=1))

    def factor(pieces: Sequence[TrainBatch | None]) -> float:
        there = [piece for piece in pieces if piece is not None]
        tokens = sum(sum(map(len, piece.prompts)) + int(piece.lengths.sum()) for piece in there)
        return (4 * len(there) + tokens) / (4 + sum(map(len, batch.prompts)) + int(batch.lengths.sum()))

    few = ranks_of.few_shards(batch, most)
    assert factor(few) <= 2
    assert len(few) == most or factor(batching.shards(batch, 2 * len(few))) > 2
    lengths = torch.cat([piece.lengths for piece in few if piece is not None])
    assert torch.equal(lengths, batch.lengths)


def test_more_ranks_than_shards_have_the_bits_of_one(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_of, "PASS_TOKENS", 1000)  # one shard
    one, three = (trained(orders, count, updates=2) for count in (1, 3))
    assert same_bits(one[0], three[0])
    assert of_the_update(one[1]) == of_the_update(three[1])


@contextmanager
def ranks(
    orders: Path, count: int, dtype: torch.dtype = torch.float32, silence: float = 60.0, **settings: Any
) -> Iterator[FleetLearner]:
    """A learner with these `settings` of `count` ranks that obey `orders`."""
    make = partial(make_deadly, orders, os.getpid(), dtype, learning_rate=0.01, **settings)
    learner = HostCluster(learner_ranks=count, silence_seconds=silence, wait_seconds=600.0).learner(make)
    assert isinstance(learner, FleetLearner)
    try:
        yield learner
    finally:
        learner.close()


def state_of(learner: FleetLearner) -> State:
    return {name: tensor.clone() for name, tensor in learners.state_of(learner.local)[1].items()}


def same_bits(one: State, other: State) -> bool:
    raw = [{name: bytes(tensor.view(-1).view(torch.uint8).numpy()) for name, tensor in s.items()} for s in (one, other)]
    return raw[0] == raw[1]


def trained(
    orders: Path,
    count: int,
    updates: int,
    dtype: torch.dtype = torch.float32,
    deaths: Mapping[int, Sequence[tuple[str, str]]] | None = None,
) -> tuple[State, list[dict[str, float]]]:
    """The state and the metrics after so many updates, with scores and moves of the reference between them."""
    found = []
    stopped = any(number == "SIGSTOP" for each in (deaths or {}).values() for _, number in each)
    with ranks(orders, count, dtype, 3.0 if stopped else 60.0) as learner:
        for step in range(updates):
            for place, number in (deaths or {}).get(step, ()):
                order(orders, place, number)
            batch = finished(learner.local, random_groups(count=4, size=4, seed=step))
            found.append(learner.update(learner.score(batch, SCORED) if step % 2 else batch).metrics.result())
            if step % 3 == 2:
                learner.move_reference(0.5)
        return state_of(learner), found


def of_the_update(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in one.items() if not key.startswith("cluster/")} for one in metrics]


ANYWHERE = [
    (place, number, 2 if (index + (number == "SIGSTOP")) % 2 else 4)
    for index, place in enumerate(PLACES)
    for number in ("SIGKILL", "SIGSTOP")
]
"""Each place with each signal, with two and with four ranks in turn."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[State, list[dict[str, float]]]:
    """Four updates of one process."""
    return trained(tmp_path_factory.mktemp("orders"), 1, 4)


def test_two_ranks_one_of_which_is_killed_twice_end_at_the_bits_of_one_process(
    orders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    right, said = trained(orders, 1, 5)
    found, metrics = trained(orders, 2, 5, deaths={1: [("shard", "SIGKILL")], 3: [("after", "SIGKILL")]})
    assert waiting(orders) == []
    assert same_bits(found, right)
    assert of_the_update(metrics) == said
    assert [one["cluster/ranks_lost"] for one in metrics] == [0, 1, 0, 1, 0]
    assert [one["cluster/updates_redone"] for one in metrics] == [0, 1, 0, 0, 0]
    assert [one["cluster/ranks"] for one in metrics[:4]] == [2, 2, 2, 1]
    told = capfd.readouterr().err
    assert told.count("oncurve: rank 1 was lost: it was killed by signal SIGKILL; the run goes on") == 2


def test_a_rank_that_has_lost_another_keeps_no_third_one_waiting(tmp_path: Path) -> None:
    """Rank 0 waits for rank 2, and that for rank 3, which is gone."""
    meeting, worlds = FileMeeting(tmp_path / "world"), list[World]()

    def take_part(rank: int) -> str:
        world = World.join(rank, 4, meeting, 60.0)
        worlds.append(world)  # which is there as long as its process
        if rank == 3:
            world.leave()
            return "left"
        try:
            world.tree_sum(lambda index: [torch.ones(8)], 4)
        except LostRankError as error:
            return "late" if "Timed out" in str(error) else "lost"
        return "done"

    with ThreadPoolExecutor(4) as threads:
        found = [each.result(240.0) for each in [threads.submit(take_part, rank) for rank in range(4)]]
    assert found == ["lost", "done", "lost", "left"]


def test_garbage_where_ranks_meet_is_a_lost_rank(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    for key in ("0/0", "0/1"):
        (folder / key.encode().hex()).write_bytes(bytes(range(100)))
    file.write_bytes(b"garbage")
    for place in (folder, file):
        with pytest.raises(LostRankError, match="rank 0 of 2 could not join the others"):
            World.join(0, 2, FileMeeting(place), 2.0, start_seconds=2.0)


def test_ranks_leave_out_the_same_updates_without_a_gradient(orders: Path) -> None:
    states, constant = [], random_groups(count=4, size=4, rewards=[[1.0] * 4] * 4)
    for count in (1, 2):
        with ranks(orders, count, kl_coef=0.0, skip_empty_updates=True) as learner:
            for groups in (random_groups(count=4, size=4), constant, constant, random_groups(count=4, size=4, seed=1)):
                learner.update(finished(learner.local, groups))
            assert learner.version == 2
            states.append(state_of(learner))
    assert same_bits(*states)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_one_two_three_and_four_ranks_have_the_same_bits_after_all_updates(orders: Path, dtype: torch.dtype) -> None:
    right, said = trained(orders, 1, 7, dtype)
    for count in (2, 3, 4) if dtype == torch.float32 else (3,):
        found, metrics = trained(orders, count, 7, dtype)
        assert same_bits(found, right), count
        assert of_the_update(metrics) == said, count
        assert {one["cluster/ranks"] for one in metrics} == {float(count)}


@pytest.mark.parametrize(("place", "number", "count"), ANYWHERE)
def test_a_rank_that_is_killed_or_stopped_anywhere_changes_no_bit(
    orders: Path, undisturbed: tuple[State, list[dict[str, float]]], place: str, number: str, count: int
) -> None:
    right, said = undisturbed
    found, metrics = trained(orders, count, 4, deaths={1: [(place, number)]})
    assert waiting(orders) == []
    assert same_bits(found, right)
    assert of_the_update(metrics) == said
    lost = sum(one["cluster/ranks_lost"] for one in metrics)
    assert 1 <= lost <= count - 1


def test_all_ranks_at_once_and_again_and_again(orders: Path) -> None:
    everywhere = [(place, "SIGKILL") for place in PLACES]
    right, said = trained(orders, 1, 6)
    found, metrics = trained(orders, 3, 6, deaths={1: everywhere, 2: everywhere, 4: everywhere[:1]})
    assert same_bits(found, right)
    assert of_the_update(metrics) == said
    assert sum(one["cluster/ranks_lost"] for one in metrics) >= 4
