"""Groups in the order in which they are finished: not exact, and no step waits for a group that others can replace.

    prompts --submit--> engine --as they are finished--> window --> the groups of a step

Prompts are begun in their order, M per step, as with a lag, and with the newest weights that there are. Each step
trains the M groups that were finished first and that no earlier step has, but for those that must not get older
(window.py). No prompt is left out, and none is trained twice. Which groups meet in a step depends on how fast they
were sampled, so neither a second run nor a resume has the same bits. A checkpoint says which of the prompts that were
begun are not trained yet; a resume samples these first.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from oncurve.base.errors import ConfigError
from oncurve.metrics import Metrics
from oncurve.models import LocalWeights, Weights
from oncurve.rollout import OnGroup, RolloutEngine, StreamingEngine
from oncurve.trainer.groups.collecting import Collected, Collecting, GivenUpError
from oncurve.trainer.groups.rollouts import Collection, LaggedRollouts, MakeCollecting, copied
from oncurve.trainer.groups.window import Window
from oncurve.trainer.state import TrainerState
from oncurve.types import Group, Prompt

_TURN_SECONDS = 0.5


@dataclass(frozen=True)
class _Batch:
    """Prompts that are begun together, with their positions in the order of prompts."""

    positions: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    draw: int


class _Stretch:
    """The steps of one call of `Trainer.train`: a window, and the prompts that are to be begun."""

    def __init__(self, window: Window, waiting: list[int]) -> None:
        self.window, self.waiting = window, deque(waiting)
        self.batches: queue.SimpleQueue[_Batch] = queue.SimpleQueue()


class WindowedRollouts(LaggedRollouts):
    """Step n trains M of the groups that are finished, each begun by weights at most `lag` steps older than its own.

    The engine must be a `StreamingEngine`; there is no dynamic sampling.
    """

    def __init__(self, lag: int) -> None:
        super().__init__(lag, ahead=True)
        self._stretch: _Stretch | None = None
        self._serving: _Stretch | None = None
        self._fresh: tuple[int, LocalWeights] | None = None
        self._followed: LocalWeights | None = None
        self._begun: list[int] = []
        self._trains: dict[int, tuple[int, ...]] = {}
        self._cursor: int | None = None
        self._draw = 0

    def follow(self, engine: RolloutEngine, weights: Weights, step: int) -> None:
        """Give groups that begin from now on a copy of these weights.

        Raises ConfigError: the weights are not in this process, or the engine takes no prompts while it samples.
        ModelError: the model cannot be copied.
        """
        if not callable(getattr(engine, "submit", None)):
            raise ConfigError(
                f'cluster.order: {type(engine).__name__} takes no prompts while it samples others; set it to "exact"'
            )
        self._engine, self._newest = engine, weights.version
        if self._fresh is None or self._fresh[0] != step:
            self._fresh = step, copied(weights)

    def collect(self, make: MakeCollecting, state: TrainerState, steps: int, metrics: Metrics) -> Collected:
        """Return the groups of the step after `state`; prompts of the steps up to `lag` later are begun."""
        if self._cursor is None:
            self._cursor, self._draw = state.cursor, state.draw
        if self._stretch is None:
            self._begun = self._untrained(state.step)
            self._trains.clear()
            self._stretch = _Stretch(Window(make().prompts, self.lag, state.step), self._begun)
        window = self._stretch.window
        found = super().collect(make, state, steps, metrics)
        self._trains[state.step + 1] = window.positions(state.step + 1)
        return found

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside nothing is collected; the groups of the step that is being collected are finished before."""
        with super().paused():
            try:
                yield
            finally:
                self._followed = None

    def rest(self) -> None:
        """Give up what is being collected. A step that follows begins with the prompts that were not trained."""
        super().rest()
        self._stretch = None

    def close(self) -> None:
        """End the thread. Twice is allowed."""
        super().close()
        self._fresh = self._followed = self._serving = None

    def save(self, folder: Path, step: int) -> dict[str, Any]:
        """Return the positions of the prompts that were begun and are not trained after `step` steps, and what
        follows.
        """
        if self._cursor is None:
            return {}
        return {"waiting": self._untrained(step), "cursor": self._cursor, "draw": self._draw}

    def load(self, folder: Path, record: Mapping[str, Any], weights: Weights) -> None:
        """Restore what `save` wrote."""
        if record:
            self._begun, self._cursor, self._draw = list(record["waiting"]), record["cursor"], record["draw"]

    def _untrained(self, step: int) -> list[int]:
        """Of the prompts that were begun, those that no step up to `step` has trained."""
        trained = {place for each, places in self._trains.items() if each <= step for place in places}
        return [place for place in self._begun if place not in trained]

    def _plan(self, collecting: Collecting, begin: TrainerState | Collection, step: int) -> Collection:
        """Return what will collect the groups of `step`; as many prompts as these are handed to the engine."""
        assert self._stretch is not None
        assert self._fresh is not None
        assert self._cursor is not None
        stretch, positions, prompts = self._stretch, list[int](), list[Prompt]()
        while len(prompts) < collecting.prompts:
            if stretch.waiting:
                positions.append(stretch.waiting.popleft())
            else:
                positions.append(self._cursor)
                self._begun.append(self._cursor)
                self._cursor += 1
            prompts += collecting.source.take(positions[-1], 1)[0]
        stretch.batches.put(_Batch(tuple(positions), tuple(prompts), self._draw))
        self._draw += 1
        return _Windowed(collecting, self._fresh[1], begin, step, stretch=stretch)

    def _gather(self, engine: RolloutEngine, now: Collection, state: TrainerState) -> Collected:
        """Return the groups of the step after `state`."""
        assert isinstance(now, _Windowed)
        stretch, streaming = now.stretch, cast("StreamingEngine", engine)
        if self._serving is not stretch:
            streaming.withdraw()
            self._serving = stretch

        def arriving(on_group: OnGroup) -> list[Group]:
            found: list[Group] = []
            while True:
                for group in stretch.window.groups(now.step, len(found)):
                    on_group(len(found), group)
                    found.append(group)
                if stretch.window.complete(now.step) and len(found) == stretch.window.prompts:
                    stretch.window.forget(now.step)
                    return found
                if now.collecting.given_up.is_set():
                    raise GivenUpError
                self._advance(streaming, stretch)

        return now.collecting.take(state, arriving, now.metrics)

    def _advance(self, engine: StreamingEngine, stretch: _Stretch) -> None:
        """Hand on the prompts that are due, with the newest weights, and take in what is finished."""
        batches = []
        while not stretch.batches.empty():
            batches.append(stretch.batches.get_nowait())
        assert self._fresh is not None  # read after the batches, which were planned with these weights or earlier ones
        steps, weights = self._fresh
        if self._followed is not weights:
            engine.follow(weights)
            stretch.window.newest(steps)
            self._followed = weights
        for batch in batches:
            _submit(engine, stretch.window, batch)
        engine.advance(_TURN_SECONDS)


@dataclass
class _Windowed(Collection):
    """The groups of one step, of those that are finished in a stretch."""

    stretch: _Stretch = field(kw_only=True)


def _submit(engine: StreamingEngine, window: Window, batch: _Batch) -> None:
    def begins(index: int) -> None:
        window.begins(batch.positions[index])

    def finished(index: int, group: Group) -> None:
        window.finished(batch.positions[index], group)

    engine.submit(batch.prompts, batch.draw, begins, finished)
