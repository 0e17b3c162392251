"""A keeper keeps what is sent to its process until that has taken it, however slow it is."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

import oncurve
from fakes.calls import Counted
from oncurve.processes.fleets.channel import Frames, framed, pickled
from oncurve.processes.fleets.keeper import keeper_class
from oncurve.processes.fleets.recipe import recipe_of
from oncurve.processes.shared import StoredBytes

STORE = SimpleNamespace(put=bytes, exceptions=SimpleNamespace(RayError=OSError))
"""What a handle needs of Ray: a store, here of copies in this process."""


class Kept:
    """A keeper with its process, to which calls are sent."""

    def __init__(self) -> None:
        source = str(Path(oncurve.__file__).parents[1])
        self.keeper = keeper_class()(
            "oncurve.processes.fleets.serving:main", source, cloudpickle.dumps(recipe_of(Counted)), {}
        )
        self.frames, self.said = Frames(), list[Any]()
        self.pid = self.until("up")[1]

    def send(self, number: int, handle: StoredBytes, *untaken: StoredBytes) -> None:
        tokens = tuple(each.token.encode() for each in untaken)
        data = framed(pickled((number, "pieces", (handle,))))
        self.keeper.send(data, handle.token.encode(), tokens, *handle.references)

    def until(self, *begins: Any) -> Any:
        """The first message that begins so."""
        deadline = time.monotonic() + 240
        while True:
            for message in self.said:
                if tuple(message[: len(begins)]) == begins:
                    return message
            assert time.monotonic() < deadline
            said, how = self.keeper.listen()
            assert how is None, how
            self.said += self.frames.feed(said)


@pytest.fixture
def kept() -> Iterator[Kept]:
    found = Kept()
    yield found
    found.keeper.child.kill()
    found.keeper.child.wait(60)
    found.keeper.end.close()
    for memory in found.keeper.memories.values():
        os.close(memory)


def stored(value: int) -> StoredBytes:
    """Two pieces, as long as those of any other value."""
    return StoredBytes(STORE, [memoryview(bytes([value]) * 1000), memoryview(bytes([value]) * 10)])


def test_two_versions_that_are_sent_at_once_are_both_taken_by_a_slow_process(kept: Kept) -> None:
    first, second, third = stored(1), stored(2), stored(3)
    os.kill(kept.pid, signal.SIGSTOP)
    kept.send(1, first)
    kept.send(2, second, first)
    kept.send(3, second, first, second)
    os.kill(kept.pid, signal.SIGCONT)
    for number, value in ((1, 1), (2, 2), (3, 2)):
        assert kept.until("replied", number)[2] == [(value, 1000), (value, 10)]
    assert len(kept.keeper.memories) == 2
    kept.send(4, third)
    assert kept.until("replied", 4)[2] == [(3, 1000), (3, 10)]
    assert list(kept.keeper.memories) == [third.token.encode()]  # what was taken is freed
