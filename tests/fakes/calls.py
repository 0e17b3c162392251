"""Objects for the processes of a fleet: what is called, and what cannot be made."""

import os
import time
from typing import Any

from oncurve.parallel import World
from oncurve.processes.fleets.devices import VISIBLE


class Counted:
    """Counts the calls of `add`, and does to its process what it is told."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self) -> None:
        self.world = World()

    def add(self, data: bytes) -> int:
        self.count += 1
        return self.count

    def much(self, count: int) -> bytes:
        return bytes(count)

    def pieces(self, pieces: list[memoryview]) -> list[tuple[int, int]]:
        return [(piece[0], len(piece)) for piece in pieces if len(set(piece)) == 1]

    def pid(self) -> int:
        return os.getpid()

    def seen(self) -> str:
        """Return the GPUs of the process."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def fail(self) -> None:
        raise ZeroDivisionError("no luck")

    def die(self, code: int) -> None:
        os._exit(code)

    def meet(self, rank: int, size: int, meeting: Any) -> bool:
        self.world.leave()
        self.world = World.join(rank, size, meeting, 30.0)
        return self.world.size == size


class Seeing:
    """Says which GPUs its process sees, and which its nursery saw."""

    def __init__(self) -> None:
        self.nursery = os.environ.get(VISIBLE)

    def begin(self) -> None:
        self.own = os.environ.get(VISIBLE)

    def seen(self) -> tuple[str | None, str | None]:
        return self.nursery, self.own


class Refusing:
    def __init__(self) -> None:
        raise ValueError("not on this machine")


class LoadsForEver:
    def __init__(self) -> None:
        open("loads", "w").close()
        time.sleep(600.0)


def close_and_sleep(descriptor: str, keeper: str) -> None:
    """A process that closes its connection and does not end."""
    os.close(int(descriptor))
    time.sleep(600.0)
