"""Weights on their way to workers: shared memory, buckets, and the digest that finds a flipped bit."""

import gc
import os
import shutil
import signal
import time
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import pytest
import torch

from fakes.tiny_policy import tiny_model
from oncurve import durable
from oncurve.cluster import HostCluster, Snapshot
from oncurve.cluster.workers.weights import DiskCarrier, ObjectCarrier, digest_of, take
from oncurve.models import changing_tensors
from oncurve.processes.fleets import HostFleet, Replied
from oncurve.processes.shared import SharedBytes


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


def test_the_disk_has_two_whole_versions_and_a_flipped_bit_in_it_is_found(tmp_path: Path) -> None:
    first, second = tiny_model(torch.bfloat16, seed=0, tied=True), tiny_model(torch.bfloat16, seed=1, tied=True)
    carrier = DiskCarrier(str(tmp_path / "between"))
    fleet = HostCluster(rollout_workers=1).fleet(partial(tiny_model, torch.bfloat16), 1, "workers")
    try:
        earliest, earlier = (carrier.put(fleet, Snapshot(first, version)) for version in (2, 3))
        path = carrier.put(fleet, snapshot := Snapshot(first, 4))
        assert not earliest.exists()
        assert durable.verify(earlier) == []
        assert durable.verify(path) == []
        take(second, path)
        assert digest_of(second) == snapshot.digest
        file = path / "weights.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 4
        file.write_bytes(content)
        take(second, path)
        assert digest_of(second) != snapshot.digest
        with pytest.raises(RuntimeError, match="has not the tensors of this model"):
            take(tiny_model(torch.bfloat16), path)
        shutil.rmtree(tmp_path / "between")  # by someone who tidies up
        assert durable.verify(carrier.put(fleet, Snapshot(first, 5))) == []
    finally:
        fleet.close()
        carrier.close()
    assert list((tmp_path / "between").iterdir()) == []


def test_a_full_disk_is_told_by_the_folder_that_was_named_and_workers_get_the_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    carrier, snapshot = DiskCarrier("between"), Snapshot(tiny_model(torch.bfloat16), 4)
    fleet = HostCluster(rollout_workers=1).fleet(partial(tiny_model, torch.bfloat16), 1, "workers")
    try:
        path = carrier.put(fleet, snapshot)
        assert path.is_absolute()
        assert durable.verify(path) == []
        monkeypatch.setattr("oncurve.durable.files.shutil.disk_usage", lambda path: SimpleNamespace(free=0))
        with pytest.raises(
            durable.DiskError, match=r"^between/oncurve-weights-\w+/000002-version-4 cannot be written: "
        ):
            carrier.put(fleet, snapshot)
    finally:
        fleet.close()
        carrier.close()


class Taker:
    """Says how many bytes of weights have come, and which process it is."""

    def begin(self) -> None:
        """Nothing to do."""

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    def take(self, version: int, digest: str, what: list[memoryview]) -> int:
        """The bytes."""
        return sum(map(len, what))


def next_event(fleet: HostFleet) -> Replied:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for event in fleet.wait(0.5):
            assert isinstance(event, Replied)
            return event
    raise AssertionError("no answer")


def test_weights_are_kept_until_the_worker_has_taken_them_whatever_is_sent_meanwhile() -> None:
    carrier, snapshot = ObjectCarrier(), Snapshot(tiny_model(), 1)
    with HostFleet(Taker, 1, silence_seconds=600.0) as fleet:
        (worker,) = fleet.settled(60.0)
        fleet.call(worker, "pid")
        pid = int(next_event(fleet).value)
        os.kill(pid, signal.SIGSTOP)
        handle = carrier.put(fleet, snapshot)
        carrier.bring(fleet, [worker], snapshot, handle)
        kept = weakref.ref(handle)
        del handle  # the engine follows another version
        gc.collect()
        os.kill(pid, signal.SIGCONT)
        event = next_event(fleet)
        assert event.value == snapshot.nbytes
        carrier.heard(event)
        gc.collect()
        assert kept() is None
    carrier.close()
