"""Groups by earlier weights: step n trains what the weights after step n - 1 - lag wrote, or those at the beginning.

With S_j the weights after j steps and lag 2: steps 1, 2 and 3 train what S_0 wrote, step 4 what S_1 wrote, and so on.
The groups of step m are a function of S_{m-1-lag} and of the position after the groups of step m - 1: of prompts, of
draws and of surplus. So they may be collected as soon as these are known, while earlier steps train, and no bit depends
on how far that has come. A checkpoint has the weights that the steps after it need, and a resume collects again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from oncurve import durable
from oncurve.base.errors import CheckpointError, ConfigError
from oncurve.learner import FROZEN
from oncurve.metrics import Metrics
from oncurve.models import LocalWeights, Weights, changing_tensors, held, module_device
from oncurve.trainer.groups.source import Collecting, GivenUpError, Groups
from oncurve.trainer.state import Collected, TrainerState

_TURN_SECONDS = 0.5


@dataclass
class _Collection:
    """The groups of one step, as they are asked for and as they come.

    begin   the state that it begins at, or the collection that it follows
    """

    collecting: Collecting
    weights: LocalWeights
    begin: TrainerState | _Collection
    step: int
    metrics: Metrics = field(default_factory=Metrics)
    found: Future[Collected] = field(default_factory=Future)

    def state(self) -> TrainerState:
        """Return the state that it begins at. Raises what went wrong with the collection that it follows."""
        if isinstance(self.begin, TrainerState):
            return replace(self.begin, step=self.step - 1)
        before = self.begin.found.result(timeout=0)
        return TrainerState(self.step - 1, before.cursor, before.draw, surplus=before.surplus, counts=before.counts)


@dataclass
class LaggedGroups(Groups):
    """Step n trains what the weights after step n - 1 - `lag` wrote.

    lag     steps; of a run that began with fewer versions, the oldest one there is
    ahead   collect up to `lag` steps ahead, in a second thread; otherwise when a step begins, by
            the same weights and to the same bits
    steps   of the run: nothing is collected for later ones
    """

    lag: int = 1
    ahead: bool = False
    steps: int = 0

    def __post_init__(self) -> None:
        self._versions: dict[int, LocalWeights] = {}
        self._stored: dict[int, str] = {}
        self._newest = 0
        self._sampled: LocalWeights | None = None
        self._planned: deque[_Collection] = deque()
        self._orders: queue.SimpleQueue[_Collection | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._using = threading.Lock()

    def follow(self, weights: Weights, step: int) -> None:
        """Keep a copy of the weights after `step` steps, and forget those that no later step needs.

        Raises ConfigError: the weights are not in this process. ModelError: the model cannot be copied.
        """
        self._newest = weights.version
        unneeded = None
        for old in [each for each in self._versions if each < step - self.lag]:
            unneeded = self._versions.pop(old)
            self._stored.pop(old, None)
        if step not in self._versions:
            self._versions[step] = _copied(weights, unneeded)

    def next(self, state: TrainerState, metrics: Metrics) -> Collected:
        """Return the groups of the step after `state`, and begin those of the steps up to `lag` later.

        What went wrong with groups of a step is raised when this step needs them.
        """
        last = max(state.step + 1, min(self.steps, state.step + 1 + self.lag) if self.ahead else 0)
        for step in range(state.step + 1 + len(self._planned), last + 1):
            before = self._planned[-1] if self._planned else None
            version = self._versions[max(step - 1 - self.lag, min(self._versions))]
            planned = _Collection(self.collecting(), version, before or state, step)
            self._planned.append(planned)
            if self.ahead:
                self._orders.put(planned)
        began, now = time.perf_counter(), self._planned[0]
        if self.ahead:
            self._wait_for(now)
        else:
            self._collect(now)
        metrics.add("cluster/wait_rollout_seconds", time.perf_counter() - began)
        self.unfinished = now.collecting.sampled
        found = now.found.result(timeout=0)
        self._planned.popleft()
        metrics.merge(now.metrics)
        completions = [each for group in found.usable for each in group.completions]
        for name in ("cluster/lag_mean", "cluster/lag_max"):
            metrics.add_all(name, [float(self._newest - each.policy_version) for each in completions])
        return found

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the collection; what is being collected is finished before."""
        while not self._using.acquire(timeout=_TURN_SECONDS):
            pass  # it ends as every rollout does: all its own waits have limits
        try:
            yield
        finally:
            self._using.release()

    def rest(self) -> None:
        """Give up what is being collected, at its next group. A step that follows collects again, to the same bits."""
        for each in self._planned:
            each.collecting.given_up.set()
        self._planned.clear()

    def close(self) -> None:
        """End the thread. Twice is allowed."""
        self.rest()
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(2 * _TURN_SECONDS)
        self._thread = self._sampled = None
        self._versions.clear()
        self._stored.clear()

    def save(self, folder: Path, step: int) -> dict[str, Any]:
        """Write the versions before `step` that later steps need, each once, next to the checkpoints."""
        found = []
        for each in sorted(key for key in self._versions if step - self.lag <= key < step):
            weights = self._versions[each]
            if each not in self._stored:
                tensors = {name: tensor.contiguous() for name, tensor in changing_tensors(weights.model).items()}
                self._stored[each] = durable.store(folder.parent / FROZEN, tensors)
            found.append({"step": each, "version": weights.version, "tensors": self._stored[each]})
        return {"versions": found}

    def load(self, folder: Path, record: Mapping[str, Any], weights: Weights) -> None:
        """Restore what `save` wrote, bit for bit. Raises CheckpointError: the tensors are those of another model."""
        self._versions.clear()
        for each in record.get("versions", ()):
            kept = replace(_copied(weights), version=int(each["version"]))
            tensors, own = durable.fetch(folder.parent / FROZEN, each["tensors"]), changing_tensors(kept.model)
            given, wanted = ({name: (t.shape, t.dtype) for name, t in of.items()} for of in (tensors, own))
            if given != wanted:
                raise CheckpointError(f"{folder}: the weights after step {each['step']} are those of another model")
            for name, tensor in own.items():
                tensor.copy_(tensors[name])
            self._versions[int(each["step"])] = kept
            self._stored[int(each["step"])] = each["tensors"]

    def _wait_for(self, collection: _Collection) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, args=(torch.get_num_threads(),), name="oncurve-rollouts", daemon=True
            )
            self._thread.start()
        while not wait([collection.found], _TURN_SECONDS).done:
            if not self._thread.is_alive():
                raise RuntimeError("the thread that collects rollouts has ended")

    def _work(self, threads: int) -> None:
        """The second thread: collections in order, until None comes."""
        torch.set_num_threads(threads)
        while True:
            try:
                order = self._orders.get(timeout=_TURN_SECONDS)
            except queue.Empty:
                continue
            if order is None:
                return
            self._collect(order)

    def _placed(self, weights: LocalWeights) -> LocalWeights:
        """Return the weights where the engine samples: on a GPU always in one model, whose steps are captured once."""
        if module_device(weights.model.module).type == "cpu":
            return weights
        self._sampled = held(weights, self._sampled)
        return self._sampled

    def _collect(self, now: _Collection) -> None:
        """Collect the groups of one step, or keep what went wrong."""
        try:
            with self._using:
                now.begin = now.state()
                if now.collecting.given_up.is_set():
                    raise GivenUpError
                self.engine.follow(self._placed(now.weights))
                now.found.set_result(now.collecting.collect(now.begin, now.metrics))
        except BaseException as error:
            now.found.set_exception(error)


def _copied(weights: Weights, into: LocalWeights | None = None) -> LocalWeights:
    """Return a copy of the weights, which no update changes, in the model of `into` if there is one.

    Raises ConfigError: they are not in this process. ModelError: the model cannot be copied.
    """
    model = weights.local()
    if model is None:
        raise ConfigError(
            "cluster.lag: the weights are not in this process, and earlier ones are kept here; set it to 0"
        )
    return held(LocalWeights(model, weights.version), into)
