"""A rollout by several processes, and the weights on their way there: the bits of one process, whatever kills it."""

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from fakes.deadly_engine import DeadlyEngine, order
from fakes.interrupted_worker import InterruptedWorker
from fakes.tables import table
from fakes.tiny_policy import VOCABULARY, tiny_model
from oncurve.base.errors import DataError, ModelError
from oncurve.cluster import HostCluster, facts
from oncurve.cluster.workers import FleetEngine, rollout_shards
from oncurve.cluster.workers.worker import digest_of
from oncurve.models import CausalModel, LocalWeights, changing_tensors
from oncurve.processes.shared import SharedBytes
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Group, Prompt

pytestmark = pytest.mark.slow

SAMPLING = Sampling(group_size=3, max_new_tokens=8)
PROMPTS = [Prompt(number % 9, "", (number % VOCABULARY, 3, 1 + number % 4)) for number in range(11)]


@contextmanager
def workers(orders: Path, count: int, **settings: Any) -> Iterator[FleetEngine]:
    settings = {"shard_groups": 2, "silence_seconds": 60.0, "wait_seconds": 600.0, **settings}
    build = partial(DeadlyEngine, orders, os.getpid(), SAMPLING, 5)
    engine = HostCluster(rollout_workers=count, **settings).rollout_engine(build(), build, SAMPLING)
    assert isinstance(engine, FleetEngine)
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("served", "count", "sizes"), [(False, 11, [2] * 5 + [1]), (True, 11, [4, 4, 3]), (True, 5, [3, 2]), (True, 2, [2])]
)
def test_shards_for_servers_have_as_many_rows_as_a_server_samples_at_a_time(
    served: bool, count: int, sizes: list[int]
) -> None:
    """Or an equal part for each worker, where that is less; never fewer groups than the settings say."""
    sampling = Sampling(group_size=3, max_new_tokens=8, max_concurrent=12)
    local = InProcessEngine(sampling)
    engine = FleetEngine(local, sampling, None, facts.ClusterFacts(shard_groups=2, workers=2, served=served), 1, 60.0)
    engine.follow(LocalWeights(tiny_model(torch.float32), 0))
    found, generate = [], local.generate
    local.generate = lambda prompts, *others: (found.append(len(prompts)), generate(prompts, *others))[1]
    assert [group.prompt for group in engine.generate(PROMPTS[:count], 0)] == PROMPTS[:count]
    assert found == sizes


def change(model: CausalModel, step: int) -> None:
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step)))


def rollouts(
    orders: Path, count: int, steps: int, before: Callable[[int], None] = lambda step: None, **settings: Any
) -> tuple[list[list[Group]], list[dict[str, float]]]:
    """The groups and the measurements of so many rollouts, the weights being others in each."""
    model, found, measured = tiny_model(torch.float32), [], []
    with workers(orders, count, **settings) as engine:
        for step in range(steps):
            before(step)
            engine.follow(LocalWeights(model, step))
            seen: dict[int, Group] = {}
            groups = engine.generate(PROMPTS, step, on_group=seen.__setitem__)
            assert [seen[index] for index in range(len(PROMPTS))] == groups
            assert {row.policy_version for group in groups for row in group.completions} == {step}
            found.append(groups)
            measured.append(dict(engine.measured()))
            change(model, step)
    return found, measured


@pytest.fixture(autouse=True, scope="module")
def shards_of_few_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "LEAST_ROWS", 1)
        yield


def test_shards_of_the_drivers_engine_have_16_rows_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "LEAST_ROWS", 16)
    assert [facts.groups_together(2, size) for size in (1, 3, 8, 64)] == [16, 6, 2, 2]
    assert facts.ClusterFacts(workers=5, shard_groups=2).idle_workers(12, 3) == 3


def test_shards_are_a_function_of_the_batch_alone_and_have_every_prompt_once() -> None:
    for count in range(20):
        for groups in range(1, 9):
            shards = rollout_shards(count, groups)
            assert [index for shard in shards for index in shard] == list(range(count))
            assert all(len(shard) == groups for shard in shards[:-1])


@pytest.mark.parametrize(
    ("action", "said", "limits"),
    table("workers", "lost"),
)
def test_a_worker_that_is_lost_or_damaged_is_replaced_and_its_shard_is_decoded_again(
    orders: Path, action: str, said: str, limits: dict[str, float], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr("oncurve.cluster.making.Worker", InterruptedWorker)
    right, _ = rollouts(orders, 0, 3)
    spoilt = orders.with_name("spoilt")
    spoilt.mkdir()
    where = spoilt if action in ("weights", "logprobs") else orders
    found, measured = rollouts(orders, 2, 3, lambda step: order(where, action) if step == 1 else None, **limits)
    assert found == right
    assert [one["cluster/shards_redone"] for one in measured] == [0, 1, 0]
    assert sum(one["cluster/workers_restarted"] for one in measured) <= 1
    assert said in capfd.readouterr().err


def test_weights_that_are_no_numbers_give_the_error_of_one_process(
    orders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model(torch.float32)
    with workers(orders, 1) as engine:
        engine.follow(LocalWeights(model, 0))
        assert len(engine.generate(PROMPTS, 0)) == len(PROMPTS)
        with torch.no_grad():
            next(model.module.parameters()).fill_(float("nan"))
        engine.follow(LocalWeights(model, 1))
        with pytest.raises(ModelError, match="logits are not finite"):
            engine.generate(PROMPTS, 1)
    assert "was lost" not in capfd.readouterr().err


def test_without_room_for_the_weights_the_driver_decodes_all_shards(
    orders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The limit of a file's size is the one that a process can set itself without harm to others. What is said, which
    goes to a file, too, has room."""
    right, _ = rollouts(orders, 0, 4)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(step: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]) if step in (1, 2) else before)

    try:
        found, measured = rollouts(orders, 1, 4, limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found == right
    assert not any("cluster/weights_bytes" in measured[step] for step in (1, 2))
    assert measured[3]["cluster/weights_bytes"] > 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("oncurve: the weights cannot be given to the workers: ")
    assert line.endswith("; until they can, this process decodes all shards to the same bits")


def test_two_workers_that_are_killed_and_fail_give_the_groups_of_one_process(
    orders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    right, nothing = rollouts(orders, 0, 5)
    assert nothing == [{}] * 5

    def before(step: int) -> None:
        for action in {1: ["SIGKILL"], 2: ["refuse"], 3: ["fail"]}.get(step, []):
            order(orders, action)
        if step == 4:
            time.sleep(3.0)  # until the fleet has noticed the last death

    found, measured = rollouts(orders, 2, 5, before)
    assert found == right
    assert len({tuple(row.ids for group in groups for row in group.completions) for groups in right}) == 5
    assert [one["cluster/shards_redone"] for one in measured] == [0, 1, 0, 1, 0]
    assert sum(one["cluster/workers_restarted"] for one in measured) == 2
    whole = sum(tensor.nbytes for tensor in changing_tensors(tiny_model(torch.float32)).values())
    assert measured[0]["cluster/weights_bytes"] in (whole, 2 * whole)
    told = capfd.readouterr().err
    assert told.count("a worker was lost: it was killed by signal SIGKILL; the run goes on") == 1
    assert told.count("a worker was lost: ZeroDivisionError: a defect; the run goes on") == 1


def test_workers_are_busy_while_they_have_a_shard_and_an_error_of_the_input_is_that_of_one_process(
    orders: Path,
) -> None:
    with workers(orders, 0) as alone:
        assert alone.worked() is None
    with workers(orders, 2) as engine:
        assert engine.worked() == 0
        engine.follow(LocalWeights(tiny_model(torch.float32), 0))
        began = time.perf_counter()
        engine.generate(PROMPTS, 0)
        after = engine.worked()
        assert after is not None
        assert 0 < after < time.perf_counter() - began
        time.sleep(0.05)
        assert engine.worked() == after  # no worker has a shard any more
        with pytest.raises(DataError, match=r"prompt 77 .* has no tokens"):
            engine.generate([*PROMPTS, Prompt(77, "", ())], 0)
        assert len(engine.generate(PROMPTS, 0)) == len(PROMPTS)


def test_with_all_workers_gone_for_good_the_driver_ends_the_run(
    orders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    right, _ = rollouts(orders, 0, 4)
    found, measured = rollouts(orders, 2, 4, lambda step: order(orders, "SIGKILL", 50) if step == 1 else None)
    assert found == right
    assert measured[-1]["cluster/workers_alive"] == 0
    told = capfd.readouterr().err
    assert told.count("its place stays empty for 60 seconds") == 2


def test_a_flipped_bit_changes_the_digest_wherever_it_is() -> None:
    model = tiny_model(torch.bfloat16)
    found = {digest_of(model)}
    tensors = list(changing_tensors(model).values())
    flips = 0
    for tensor in tensors:
        data = tensor.view(-1).view(torch.uint8)
        for place in range(0, data.numel(), 13):
            data[place] ^= 1 << (place % 8)
            found.add(digest_of(model))
            data[place] ^= 1 << (place % 8)
            flips += 1
    assert flips > 10
    assert len(found) == 1 + flips
    assert digest_of(model) in found


def test_another_process_reads_the_same_memory_as_long_as_the_handle_is_kept() -> None:
    def seen(message: bytes) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, str([bytes(piece) for piece in cloudpickle.loads(message)]).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        return text

    handle = SharedBytes(memoryview(piece) for piece in (b"some", b"weights"))
    descriptor, message = handle.descriptor, cloudpickle.dumps(handle)
    mine = cloudpickle.loads(message)
    assert seen(message) == str([b"some", b"weights"])
    assert mine[0].readonly
    del handle
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert seen(message) == "[]"
    other = os.open(os.devnull, os.O_RDONLY)  # the number may be another file's
    assert seen(message) == "[]"
    os.close(other)
    assert bytes(mine[1]) == b"weights"  # whoever has it, has it
