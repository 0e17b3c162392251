"""Weights that this process sends to all its workers at once, over torch.distributed and no memory between.

    driver                                        worker
    call(worker, "take", ..., Invitation) ---->   World.join, once per world
    World.join, once per world                    World.broadcast into the model's own tensors
    World.broadcast, agree                        agree; then the digest is compared, as with every carrier

A world has this process as rank 0 and the workers that lack the version. It is used again as long as these are the
same; otherwise there is another one. It is abandoned as soon as one of its workers is lost or a wait has reached its
limit. Then the other workers have no version, are unharmed, and are invited again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from oncurve.base.errors import ConfigError
from oncurve.base.output import urgent
from oncurve.cluster.workers.weights import Carrier, Snapshot
from oncurve.models import CausalModel, changing_tensors
from oncurve.parallel import ALONE, Backend, LostRankError, Meeting, World
from oncurve.processes.fleets import Fleet

TRIES = 3
"""After so many broadcasts in vain, one after another, the driver decodes what is left of the rollout."""

BUCKET_SECONDS = 60.0
"""The limit of each wait within a broadcast, where no worker was lost before."""

_DRIVER_JOINS_SECONDS, _WORKER_JOINS_SECONDS = 45.0, 15.0
"""All workers of a world are up and free, so they join at once. A worker that waits in vain for one that was lost has
given up before the driver does."""

_TURN_SECONDS, _NOTICE_SECONDS = 0.01, 2.0


@dataclass(frozen=True)
class Invitation:
    """A worker's place in a broadcast.

    number    of the world, which is another for other workers
    rank      the worker's in it
    size      the world's, the driver included
    meeting   where its processes find each other
    seconds   the limit of a wait
    """

    number: int
    rank: int
    size: int
    meeting: Meeting
    backend: Backend
    seconds: float


class Broadcast(Carrier):
    """The carrier of `cluster.weights = "gloo"` and `"nccl"`.

    backend   "gloo" sends from and to memory of processors, "nccl" from GPU to GPU
    seconds   the limit of each wait
    """

    together, ahead = True, False

    def __init__(self, backend: Backend, seconds: float = BUCKET_SECONDS) -> None:
        super().__init__()
        self._backend, self._seconds = backend, seconds
        self._members, self._number = tuple[int, ...](), 0
        self._in_vain = 0
        self._meeting: Meeting | None = None
        self._world = ALONE

    def put(self, fleet: Fleet, snapshot: Snapshot) -> Snapshot:
        """The snapshot: nothing is copied before it is sent. Raises ConfigError: a tensor cannot be sent."""
        _sendable(snapshot.model)
        return snapshot

    def bring(self, fleet: Fleet, workers: Sequence[int], snapshot: Snapshot, handle: Snapshot) -> bool:
        """Send the weights to `workers`, which are free. True: all have them. False: a worker was lost, or did not
        answer in time, and perhaps none has them."""
        try:
            self._send(fleet, workers, snapshot)
        except LostRankError as error:
            self._in_vain += 1
            self.gives_up = self._in_vain >= TRIES
            if self.gives_up:
                urgent(
                    f"oncurve: {TRIES} broadcasts of the weights were in vain ({error}); this process decodes the rest"
                )
            return False
        self._in_vain, self.gives_up = 0, False
        return True

    def _send(self, fleet: Fleet, workers: Sequence[int], snapshot: Snapshot) -> None:
        if tuple(workers) != self._members:
            self.close()
            self._members, self._number, self._meeting = tuple(workers), self._number + 1, fleet.meeting()
        assert self._meeting is not None
        size = 1 + len(workers)
        for rank, worker in enumerate(workers, 1):
            place = Invitation(self._number, rank, size, self._meeting, self._backend, self._seconds)
            fleet.call(worker, "take", snapshot.version, snapshot.digest, place)
        sending = _Sending(self._world, size, self._meeting, self._backend, self._seconds, _sendable(snapshot.model))
        sending.start()
        members = set(workers)
        while sending.is_alive() and members.issubset(fleet.up()):
            sending.join(_TURN_SECONDS)
        self._world = sending.ended()
        if self._world is ALONE:
            self._members = ()
            self._notice(fleet, members)
            raise sending.error or LostRankError("a worker was lost while it received the weights")

    def _notice(self, fleet: Fleet, members: set[int]) -> None:
        """Let the fleet notice a loss that the connections have shown: the next broadcast is without that worker."""
        until = time.monotonic() + _NOTICE_SECONDS
        while members.issubset(fleet.up()) and time.monotonic() < until:
            time.sleep(_TURN_SECONDS)

    def close(self) -> None:
        """Leave the world. Twice is allowed; another one is made when it is needed."""
        self._world.leave()
        self._world, self._members = ALONE, ()


class _Sending(threading.Thread):
    """One broadcast, in a thread: the one that asks for it sees meanwhile whether a worker is lost.

    error   why it has failed; None: it has not, or was given up
    """

    def __init__(
        self, world: World, size: int, meeting: Meeting, backend: Backend, seconds: float, tensors: Sequence[Tensor]
    ) -> None:
        super().__init__(daemon=True)
        self._world, self._given_up, self._done = world, threading.Event(), False
        self._place, self._seconds, self._tensors = (0, size, meeting), seconds, tensors
        self._backend = backend
        self.error: LostRankError | None = None

    def run(self) -> None:
        """Send the tensors. Given up, it ends at the latest at the limit of the wait that it is in."""
        try:
            if self._world is ALONE:
                self._world = World.join(*self._place, self._seconds, _DRIVER_JOINS_SECONDS, self._backend)
            if not self._given_up.is_set():
                self._world.broadcast(self._tensors)
                self._done = self._world.agree(True)
        except LostRankError as error:
            self.error = error
        except RuntimeError as error:  # such as a GPU without room for a bucket
            self.error = LostRankError(str(error).partition("\n")[0])
        if not self._done or self._given_up.is_set():
            self._world.leave()  # then the others see it, and leave too

    def ended(self) -> World:
        """The world, if all of it has the weights; ALONE: the broadcast has failed, or is given up by this."""
        self._given_up.set()
        return self._world if self._done else ALONE


class Receiver:
    """The worker's end of broadcasts: the world that it is in."""

    def __init__(self) -> None:
        self._world, self._number = ALONE, 0

    def take(self, model: CausalModel, place: Invitation) -> None:
        """Fill the model's tensors with the driver's. Raises LostRankError: then some may be filled."""
        try:
            if place.number != self._number:
                self._leave()
                seconds = (place.seconds, _WORKER_JOINS_SECONDS)
                self._world = World.join(place.rank, place.size, place.meeting, *seconds, place.backend)
                self._number = place.number
            self._world.broadcast(_sendable(model))
        except LostRankError:
            self._leave()
            raise
        try:
            self._world.agree(True)
        except LostRankError:  # all tensors are here: what others lack is for the driver to know
            self._leave()

    def _leave(self) -> None:
        """Leave the world, so that others in it, which may wait for this worker, see it."""
        self._world.leave()
        self._world, self._number = ALONE, 0


def _sendable(model: CausalModel) -> list[Tensor]:
    """The tensors that training changes. Raises ConfigError: one is not in one piece."""
    tensors = list(changing_tensors(model).values())
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ConfigError(
                f"cluster.weights: a weight of shape {tuple(tensor.shape)} with strides {tensor.stride()} cannot be "
                'broadcast; set it to "object", or make the model\'s tensors contiguous'
            )
    return tensors
