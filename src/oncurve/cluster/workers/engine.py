"""A rollout engine whose completions are sampled by several processes, so that their number cannot be seen.

    queue of shards --> any worker that is free --> groups, in the order of the prompts

Prompts are cut into fixed shards (queue.py), each of which is decoded by itself; any worker may decode any shard. A
worker has the weights of one whole version (weights.py), sent before its first shard of it. A fault is answered by
decoding the shard again: it goes to the front of the queue. The driver, this process, decodes a shard itself where
several workers were lost with it, where it failed with an error, and where no worker has lived for a while. Since the
shards, not the workers, are part of the result, no fault changes a bit, and none stops a run.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from oncurve.base.errors import ConfigError, OncurveError
from oncurve.base.output import urgent
from oncurve.cluster.workers.queue import Call, Lost, Rollout
from oncurve.cluster.workers.timing import Busy, Deadlines
from oncurve.cluster.workers.weights import Carrier, Sending, Snapshot
from oncurve.durable import StorageError
from oncurve.machine.threads import computing_threads
from oncurve.models import CausalModel, Weights
from oncurve.processes.fleets import Failed, Fleet, ProcessEnded, Replied
from oncurve.rollout import EngineBase, OnGroup, RolloutEngine, Sampling
from oncurve.types import Group, Prompt

TRIES = 3
"""The number of workers that may be lost with a shard before the driver decodes it."""

PATIENCE_SECONDS = 30.0
"""The time that the driver waits for a worker before it decodes a shard itself."""

_TURN_SECONDS, _SHORT_TURN_SECONDS = 1.0, 0.02

MakeFleet = Callable[[CausalModel], Fleet]


class FleetEngine(EngineBase):
    """A `RolloutEngine` of workers that have an engine each.

    local         the driver's engine: it decodes what workers cannot, and all shards where `make_fleet` is None
    sampling      the settings of a training rollout
    make_fleet    a fleet whose objects are `oncurve.cluster.workers.worker.Worker`s over a copy of the model
    shard_groups  groups that are decoded together; part of the result
    threads       of each process while it decodes; part of the result
    wait_seconds  the longest time that a worker has for a shard
    carrier       how weights get to workers
    start_seconds the time that a worker has in addition for its first shard, in which it starts a server
    exact         whether the workers' log-probs are those of the weights, as the driver's are
    workers       how many workers the fleet has when none is lost
    fill          whether shards have as many groups as a worker samples at a time, or its part of all, if that is more
    """

    def __init__(
        self,
        local: RolloutEngine,
        sampling: Sampling,
        make_fleet: MakeFleet | None,
        shard_groups: int,
        threads: int,
        wait_seconds: float,
        carrier: Carrier,
        start_seconds: float = 0.0,
        exact: bool = True,
        workers: int = 1,
        fill: bool = False,
    ) -> None:
        self.local, self.sampling, self._make_fleet = local, sampling, make_fleet
        self._shard_groups, self._threads, self._fill = shard_groups, threads, fill
        self._carrier, self._start, self._exact, self._workers = carrier, start_seconds, exact, workers
        self._fleet: Fleet | None = None
        self._sending: Sending | None = None
        self._next: Sending | None = None
        self._calls, self._has = dict[int, Call](), dict[int, str]()
        self._refusals, self._refused = set[str](), False
        self._deadlines, self._alive_at = Deadlines(wait_seconds), 0.0
        self._busy, self._measured = Busy(), defaultdict[str, float](float)
        self._patience, self._told = max(PATIENCE_SECONDS, start_seconds), exact

    @property
    def exact(self) -> bool:
        """Return whether the driver's engine and the workers' are."""
        return self.local.exact and self._exact

    @property
    def _bits(self) -> str:
        return " to the same bits" if self._exact else ""

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
        snapshot, ahead, self._next = Snapshot(model, weights.version), self._next, None
        if ahead is not None:
            ahead.settle()
        self._sending = ahead if ahead is not None and ahead.snapshot.is_of(snapshot) else Sending(snapshot)
        if self._fleet is None:
            self._fleet = self._make_fleet(model)

    def prepare(self, weights: Weights) -> None:
        """Begin to send these weights, which are followed next and do not change, while the present ones are in use.

        Workers that have no shard left take them. Any thread may call it; it waits for nothing.
        """
        model = weights.local()
        if self._fleet is not None and self._next is None and model is not None and self._carrier.ahead:
            self._next = Sending(Snapshot(model, weights.version))
            self._next.begin(self._carrier, self._fleet)

    def close(self) -> None:
        """End the workers. Twice is allowed; `follow` starts others."""
        if self._fleet is not None:
            self._fleet.close()
        if self._next is not None:
            self._next.settle()
        self._fleet = self._sending = self._next = None
        self._carrier.close()
        for worker in self._calls:
            self._busy.ends(worker)
        self._calls.clear()
        self._has.clear()
        self.local.close()

    def rest(self) -> None:
        """End the workers for good: from now on this process decodes all shards. Twice is allowed."""
        self.close()
        self._make_fleet, self._told = None, True

    def measured(self) -> Mapping[str, float]:
        """Return the metrics of the rollouts since the last call."""
        found, self._measured = self._measured, defaultdict(float)
        return found

    def worked(self) -> float | None:
        """Return seconds for which a worker had a shard so far, or copied weights for it: the mean over all workers.

        None: no worker samples for this engine.
        """
        return None if self._make_fleet is None else self._busy.seconds() / self._workers

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
        sampling, groups = sampling or self.sampling, self._shard_groups
        if self._fill:
            full = sampling.rows_at_once("cuda") // sampling.group_size
            groups = max(groups, min(full, -(-len(prompts) // self._workers)))
        rollout = Rollout.of(prompts, draw, sampling, groups, on_group, first_samples)
        self._alive_at = time.monotonic()
        try:
            fleet = self._ready()
            if fleet is None:
                while rollout.queue:
                    self._decode_here(rollout, rollout.queue.popleft())
            else:
                while not rollout.done:
                    self._turn(fleet, rollout)
                self._measured["cluster/workers_alive"] = float(len(fleet.up()))
        finally:
            for call in self._calls.values():
                call.index = None  # where an error has ended the rollout, what workers still do is of no use
        return [rollout.groups[index] for index in range(len(prompts))]

    def _ready(self) -> Fleet | None:
        """Return the fleet, with the weights at hand; None: there is none, or no room for them."""
        fleet = self._fleet
        if fleet is None or not self._publish(fleet):
            return None
        for name in ("cluster/workers_restarted", "cluster/shards_redone", "cluster/tokens_redone"):
            self._measured[name] += 0.0
        if not self._calls and not fleet.up():
            fleet.settled(self._patience)
        return fleet

    def _turn(self, fleet: Fleet, rollout: Rollout) -> None:
        """Hand out shards, decode one here if it has come to that, and take in what has happened."""
        if self._fleet is not fleet:
            raise RuntimeError("the engine was closed during a rollout")
        up = self._dispatch(fleet, rollout)
        if rollout.own:
            self._decode_here(rollout, rollout.own.popleft())
        elif rollout.queue and self._is_alone(fleet, up):
            self._decode_here(rollout, rollout.queue.popleft())
        busy = bool(rollout.own) or rollout.done
        self._hear(fleet, 0.0 if busy else _TURN_SECONDS if self._calls else _SHORT_TURN_SECONDS)
        self._end_late_ones(fleet)

    def _dispatch(self, fleet: Fleet, rollout: Rollout) -> list[int]:
        """Give every free worker a shard, or where none is left the next weights; return the workers that are up."""
        up, sending, ahead = fleet.up(), self._sending, self._next
        assert sending is not None
        free = [worker for worker in up if worker not in self._calls]
        first = {worker for worker in free if worker not in self._has}
        chosen = free[: len(rollout.queue)]
        if not self._bring(fleet, chosen, free, sending):
            if self._carrier.gives_up:
                rollout.leave_to_driver()
            return up
        for worker in chosen:
            index = rollout.queue.popleft()
            limit = self._deadlines.limit(rollout.sampling) + self._start * (worker in first)
            digest, (prompts, firsts) = sending.snapshot.digest, rollout.begin(index)
            number = fleet.call(worker, "decode", digest, prompts, rollout.draw, rollout.sampling, firsts)
            self._calls[worker] = Call(number, rollout, index, sending, now := time.monotonic(), now + limit)
            self._busy.begins(worker)
        if ahead is not None and ahead.ready:
            self._bring(fleet, free[len(chosen) :], (), ahead)
        return up

    def _publish(self, fleet: Fleet) -> bool:
        """Make the weights ready for workers that lack them, in one copy. False: it is refused, which is said once."""
        assert self._sending is not None
        began = time.perf_counter()
        try:
            self._sending.finish(self._carrier, fleet)
        except (OSError, StorageError) as error:
            if not self._refused:
                why = f"the weights cannot be given to the workers: {getattr(error, 'reason', error)}"
                urgent(f"oncurve: {why}; until they can, this process decodes all shards{self._bits}")
            self._refused = True
            return False
        finally:
            self._measured["cluster/weights_seconds"] += time.perf_counter() - began
        self._refused = False
        return True

    def _bring(self, fleet: Fleet, chosen: Sequence[int], free: Sequence[int], sending: Sending) -> bool:
        """Have `chosen` workers take the weights, and with a carrier for all at once the other `free` ones, too."""
        began, lacking = time.perf_counter(), [w for w in chosen if self._has.get(w) != sending.key]
        if lacking and self._carrier.together:
            lacking = [worker for worker in free if self._has.get(worker) != sending.key]
        brought = not lacking or self._carrier.bring(fleet, lacking, sending.snapshot, sending.handle)
        if lacking and brought:
            self._measured["cluster/weights_bytes"] += sending.snapshot.nbytes * len(lacking)
            self._has |= dict.fromkeys(lacking, sending.key)
        self._measured["cluster/weights_seconds"] += time.perf_counter() - began
        return brought

    def _is_alone(self, fleet: Fleet, up: Sequence[int]) -> bool:
        """Return whether the driver is the only process that is left, or has waited long enough for another."""
        now = time.monotonic()
        if up:
            self._alive_at = now
        return fleet.quarantined or now - self._alive_at > self._patience

    def _hear(self, fleet: Fleet, seconds: float) -> None:
        """Act on what has happened within so many `seconds`."""
        for event in fleet.wait(seconds):
            self._carrier.heard(event)
            call = self._calls.get(event.process)
            if isinstance(event, ProcessEnded):
                self._has.pop(event.process, None)
                self._calls.pop(event.process, None)
                self._busy.ends(event.process)
                self._lost(event)
                if call is not None and call.index is not None:
                    self._again(call.rollout, call.index)
            elif isinstance(event, Failed) and event.lost:
                continue  # of a broadcast that is repeated: nothing else was asked of this worker
            elif isinstance(event, Failed):
                if call is not None and call.index is not None:
                    call.rollout.own.append(call.index)  # if the error is not the worker's own, the driver meets it too
                    call.index = None
            elif call is None or call.number != event.number:
                continue
            elif isinstance(event.value, Lost):
                fleet.kill(event.process, event.value.cause)
            else:
                del self._calls[event.process]
                self._busy.ends(event.process)
                self._arrived(call, event)

    def _arrived(self, call: Call, event: Replied) -> None:
        if call.index is None:
            return
        if isinstance(event.value, OncurveError):
            call.rollout.own.append(call.index)
            call.rollout.refused[call.index] = str(event.value)
            return
        self._deadlines.took(call.rollout.sampling, time.monotonic() - call.began)
        self._measured["cluster/tokens_redone"] += call.rollout.keep(call.index, event.value)

    def _again(self, rollout: Rollout, index: int) -> None:
        """A worker was lost with a shard."""
        rollout.losses[index] += 1
        self._measured["cluster/shards_redone"] += 1
        if rollout.losses[index] >= TRIES:
            urgent(f"oncurve: {TRIES} workers were lost with one shard; this process decodes it{self._bits}")
            rollout.own.append(index)
        else:
            rollout.queue.appendleft(index)

    def _lost(self, event: ProcessEnded) -> None:
        self._measured["cluster/workers_restarted"] += 1
        if not event.told or event.quarantine:
            urgent(f"oncurve: a worker was lost: {event.cause}; the run goes on{self._bits}{event.consequence}")

    def _end_late_ones(self, fleet: Fleet) -> None:
        now = time.monotonic()
        for worker, call in self._calls.items():
            if now > call.deadline:
                call.deadline = float("inf")
                fleet.kill(worker, f"it did not decode a shard within {now - call.began:.0f} s (cluster.wait_seconds)")

    def _decode_here(self, rollout: Rollout, index: int) -> None:
        refused = rollout.refused.get(index)
        if not self._told and not refused:
            self._told = True
            urgent(
                "oncurve: no worker can sample; this process decodes with oncurve's own engine as long as that is so"
            )
        prompts, firsts = rollout.begin(index)
        with computing_threads(self._threads):
            groups = self.local.generate(prompts, rollout.draw, rollout.sampling, None, firsts)
        if refused and refused not in self._refusals:
            self._refusals.add(refused)
            urgent(f"oncurve: a worker could not decode a shard, and this process did{self._bits}: {refused}")
        if tokens := rollout.keep(index, groups):
            self._measured["cluster/tokens_redone"] += tokens
