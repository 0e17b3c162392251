"""A rollout engine whose completions are sampled by several processes, so that their number cannot be seen.

    queue of shards --> any worker that is free --> groups, in the order of the prompts

Prompts are cut into fixed shards, each of which is decoded by itself; any worker may decode any shard. Rows that are
decoded in one batch share matrix products, whose rounding depends on the batch's shape. So the shards are a function of
the batch alone. A worker has the weights of one whole version, sent before its first shard of it. A fault is answered
by decoding the shard again: it goes to the front of the queue. The driver, this process, decodes a shard itself where
several workers were lost with it, where it was refused with an error, and where no worker has lived for a while. Since
the shards, not the workers, are part of the result, no fault changes a bit, and none stops a run.
"""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from oncurve.base.errors import ConfigError, UserError
from oncurve.base.output import urgent
from oncurve.cluster.facts import ClusterFacts, groups_together
from oncurve.cluster.workers.worker import Snapshot
from oncurve.machine.threads import computing_threads
from oncurve.models import CausalModel, Weights
from oncurve.processes.fleets import Fleet, ProcessEnded, Replied
from oncurve.rollout import EngineBase, OnGroup, RolloutEngine, Sampling, count_samples
from oncurve.types import Group, Prompt


def rollout_shards(prompts: int, groups: int) -> list[range]:
    """Return runs of `groups` adjacent prompts, by their indices; the last may be shorter.

    Example: of 10 prompts by 4 groups, 0 to 3, 4 to 7, and 8 and 9.
    """
    return [range(first, min(first + groups, prompts)) for first in range(0, prompts, groups)]


class Rollout:
    """The prompts of one call of `FleetEngine.generate`, in shards of `shard_groups`.

    firsts    the sample index that each prompt's group begins at; None: samples are counted within `prompts`
    queue     shards that no process has
    own       shards that the driver is to decode
    losses    by shard, how many workers were lost with it
    groups    by prompt, those that have come
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling,
        shard_groups: int,
        on_group: OnGroup | None,
        firsts: Sequence[int] | None,
    ) -> None:
        self.prompts, self.draw, self.sampling, self._on_group = prompts, draw, sampling, on_group
        self._firsts = count_samples(prompts, sampling.group_size) if firsts is None else firsts
        self._shards = rollout_shards(len(prompts), shard_groups)
        self.queue, self.own = deque(range(len(self._shards))), deque[int]()
        self.losses, self.groups = Counter[int](), dict[int, Group]()

    @property
    def done(self) -> bool:
        """Return whether every prompt has its group."""
        return len(self.groups) == len(self.prompts)

    def begin(self, index: int) -> tuple[list[Prompt], list[int]]:
        """Return prompts and first samples of a shard that is decoded now."""
        shard = self._shards[index]
        return [self.prompts[i] for i in shard], [self._firsts[i] for i in shard]

    def keep(self, index: int, groups: Sequence[Group]) -> None:
        """Take the groups of a shard."""
        for prompt, group in zip(self._shards[index], groups, strict=True):
            self.groups[prompt] = group
            if self._on_group is not None:
                self._on_group(prompt, group)


@dataclass
class Call:
    """A call that a worker is doing.

    index        of the rollout's shard; None: of one that was given up
    snapshot     the weights by which it decodes; their copy is there as long as the worker may read it
    began        when the worker got it, in seconds of `time.perf_counter`
    """

    number: int
    index: int | None
    snapshot: Snapshot
    began: float
    deadline: float


TRIES = 3
"""The number of workers that may be lost with a shard before the driver decodes it."""

PATIENCE_SECONDS = 30.0
"""The time that the driver waits for a worker before it decodes a shard itself."""

_TURN_SECONDS, _SHORT_TURN_SECONDS = 1.0, 0.02


class FleetEngine(EngineBase):
    """A `RolloutEngine` of workers that have an engine each.

    local         the driver's engine: it decodes what workers cannot, and all shards where `make_fleet` is None
    sampling      the settings of a training rollout
    make_fleet    a fleet whose objects are `oncurve.cluster.workers.worker.Worker`s over a copy of the model
    facts         how many workers the fleet has when none is lost, and how many groups are decoded together. Where they
                  are served, they have a server each. They start it with their first weights, its log-probs are not
                  those of the driver's engine, and a shard has as many groups as a worker samples at a time, or its
                  part of all
    threads       of each process while it decodes; part of the result
    wait_seconds  the longest time that a worker has for a shard
    """

    def __init__(
        self,
        local: RolloutEngine,
        sampling: Sampling,
        make_fleet: Callable[[CausalModel], Fleet] | None,
        facts: ClusterFacts,
        threads: int,
        wait_seconds: float,
    ) -> None:
        self.local, self.sampling, self._make_fleet = local, sampling, make_fleet
        self._shard_groups, self._threads, self._workers = facts.shard_groups, threads, facts.workers
        self._served, self._limit = facts.served, wait_seconds * (1 + facts.served)
        self._bits = "" if facts.served else " to the same bits"
        self._patience = max(PATIENCE_SECONDS, wait_seconds * facts.served)
        self._fleet: Fleet | None = None
        self._snapshot: Snapshot | None = None
        self._calls, self._has = dict[int, Call](), dict[int, tuple[int, str]]()
        self._said, self._alive_at = set[str](), 0.0
        self._worked, self._counting = 0.0, threading.Lock()  # guards it, and which calls there are
        self._measured = defaultdict[str, float](float)

    @property
    def exact(self) -> bool:
        """Return whether the driver's engine and the workers' are."""
        return self.local.exact and not self._served

    def follow(self, weights: Weights) -> None:
        """Sample from these weights from now on. Workers get them with their next shard.

        Raises ConfigError: the weights are not in this process.
        """
        self.local.follow(weights)
        if self._make_fleet is None:
            return
        model = weights.local()
        if model is None:
            raise ConfigError("cluster.rollout_workers: the weights are not in this process; set it to 0")
        self._snapshot = Snapshot(model, weights.version)
        if self._fleet is None:
            self._fleet = self._make_fleet(model)

    def close(self) -> None:
        """End the workers. Twice is allowed; `follow` starts others."""
        if self._fleet is not None:
            self._fleet.close()
        self._fleet = self._snapshot = None
        for worker in list(self._calls):
            self._ended(worker)
        self._has.clear()
        self.local.close()

    def rest(self) -> None:
        """End the workers for good: from now on this process decodes all shards. Twice is allowed."""
        self.close()
        self._make_fleet = None

    def measured(self) -> Mapping[str, float]:
        """Return the metrics of the rollouts since the last call."""
        found, self._measured = self._measured, defaultdict(float)
        return found

    def worked(self) -> float | None:
        """Return seconds for which a worker had a shard so far, or copied weights for it: the mean over all workers.

        None: no worker samples for this engine. Any thread may ask at any time.
        """
        if self._make_fleet is None:
            return None
        with self._counting:
            now = time.perf_counter()
            return (self._worked + sum(now - call.began for call in self._calls.values())) / self._workers

    def generate(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling | None = None,
        on_group: OnGroup | None = None,
        first_samples: Sequence[int] | None = None,
    ) -> list[Group]:
        """Return one group per prompt, in the prompts' order, without scores.

        Raises what the driver's engine raises, and ConfigError: the workers cannot start.
        """
        sampling = sampling or self.sampling
        groups = groups_together(self._shard_groups, sampling.group_size)
        if self._served:
            full = sampling.rows_at_once("cuda") // sampling.group_size
            groups = max(self._shard_groups, min(full, -(-len(prompts) // self._workers)))
        rollout = Rollout(prompts, draw, sampling, groups, on_group, first_samples)
        try:
            fleet = self._ready()
            while not rollout.done:
                if fleet is None:
                    self._decode_here(rollout, rollout.queue.popleft())
                else:
                    self._turn(fleet, rollout)
            if fleet is not None:
                self._measured["cluster/workers_alive"] = float(len(fleet.up()))
        finally:
            for call in self._calls.values():
                call.index = None  # where an error has ended the rollout, what workers still do is of no use
        return [rollout.groups[index] for index in range(len(prompts))]

    def _ready(self) -> Fleet | None:
        """Return the fleet, with the weights at hand in one copy; None: there is none, or no room for them."""
        fleet, snapshot = self._fleet, self._snapshot
        if fleet is None or snapshot is None:
            return None
        began = time.perf_counter()
        try:
            snapshot.handle = snapshot.handle or fleet.put(snapshot.pieces())
        except OSError as error:
            what = f"the weights cannot be given to the workers: {error}"
            self._say_once(f"{what}; until they can, this process decodes all shards{self._bits}")
            return None
        self._measured["cluster/weights_seconds"] += time.perf_counter() - began
        for name in ("cluster/workers_restarted", "cluster/shards_redone"):
            self._measured[name] += 0.0
        if not self._calls and not fleet.up():
            fleet.settled(self._patience)
        self._alive_at = time.monotonic()
        return fleet

    def _turn(self, fleet: Fleet, rollout: Rollout) -> None:
        """Hand out shards, decode one here if it has come to that, and take in what has happened."""
        if self._fleet is not fleet:
            raise RuntimeError("the engine was closed during a rollout")
        up = fleet.up()
        self._hand_out(fleet, up, rollout)
        if up:
            self._alive_at = time.monotonic()
        if rollout.own:
            self._decode_here(rollout, rollout.own.popleft())
        elif rollout.queue and (fleet.quarantined or time.monotonic() - self._alive_at > self._patience):
            if self._served:
                self._say_once(
                    "no worker can sample; as long as that is so this process does, with oncurve's own engine"
                )
            self._decode_here(rollout, rollout.queue.popleft())
        busy = bool(rollout.own) or rollout.done
        self._hear(fleet, rollout, 0.0 if busy else _TURN_SECONDS if self._calls else _SHORT_TURN_SECONDS)
        for worker, call in self._calls.items():
            if time.monotonic() > call.deadline:
                call.deadline = float("inf")
                fleet.kill(worker, f"it did not decode a shard within {self._limit:g} s (cluster.wait_seconds)")

    def _hand_out(self, fleet: Fleet, up: Sequence[int], rollout: Rollout) -> None:
        """Give every free worker a shard, and before it the weights where it lacks them."""
        snapshot = self._snapshot
        assert snapshot is not None
        for worker in [each for each in up if each not in self._calls][: len(rollout.queue)]:
            began, index = time.perf_counter(), rollout.queue.popleft()
            if self._has.get(worker) != (key := (snapshot.version, snapshot.digest)):
                fleet.call(worker, "take", snapshot.version, snapshot.digest, snapshot.handle)
                self._has[worker] = key
                self._measured["cluster/weights_bytes"] += snapshot.nbytes
                self._measured["cluster/weights_seconds"] += time.perf_counter() - began
            prompts, firsts = rollout.begin(index)
            number = fleet.call(worker, "decode", snapshot.digest, prompts, rollout.draw, rollout.sampling, firsts)
            with self._counting:
                limit = time.monotonic() + self._limit
                self._calls[worker] = Call(number, index, snapshot, time.perf_counter(), limit)

    def _hear(self, fleet: Fleet, rollout: Rollout, seconds: float) -> None:
        """Act on what has happened within so many `seconds`. A worker that has failed ends, too."""
        for event in fleet.wait(seconds):
            call = self._calls.get(event.process)
            if isinstance(event, ProcessEnded):
                self._has.pop(event.process, None)
                self._measured["cluster/workers_restarted"] += 1
                urgent(f"oncurve: a worker was lost: {event.cause}; the run goes on{self._bits}{event.consequence}")
            elif not isinstance(event, Replied) or call is None or call.number != event.number:
                continue  # the weights were taken, or a worker has failed, whose end follows
            self._ended(event.process)
            if call is None or call.index is None:
                continue
            if isinstance(event, ProcessEnded):
                self._again(rollout, call.index)
            elif isinstance(event.value, UserError):
                self._say_once(f"a worker could not decode a shard, and this process does{self._bits}: {event.value}")
                rollout.own.append(call.index)
            else:
                rollout.keep(call.index, event.value)

    def _ended(self, worker: int) -> None:
        """A worker has nothing to do any more."""
        with self._counting:
            if (call := self._calls.pop(worker, None)) is not None:
                self._worked += time.perf_counter() - call.began

    def _again(self, rollout: Rollout, index: int) -> None:
        """A worker was lost with a shard."""
        rollout.losses[index] += 1
        self._measured["cluster/shards_redone"] += 1
        if rollout.losses[index] >= TRIES:
            urgent(f"oncurve: {TRIES} workers were lost with one shard; this process decodes it{self._bits}")
            rollout.own.append(index)
        else:
            rollout.queue.appendleft(index)

    def _decode_here(self, rollout: Rollout, index: int) -> None:
        prompts, firsts = rollout.begin(index)
        with computing_threads(self._threads):
            groups = self.local.generate(prompts, rollout.draw, rollout.sampling, None, firsts)
        rollout.keep(index, groups)

    def _say_once(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            urgent(f"oncurve: {what}")
