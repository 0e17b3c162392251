"""An event simulation of training on many GPUs: engines that decode, a trainer, and the steps that they may be apart.

With N parameters, K/V of `kv` bytes per token and F FLOP/s and BW bytes per second of an engine (`decode_seconds`),

    token_seconds   LAUNCH_SECONDS + 2·N / (DECODE_BANDWIDTH·BW)
    row_seconds     2·N / (DECODE_FLOPS·F) + kv·context / (DECODE_BANDWIDTH·BW)

Completions have lognormal lengths up to a limit. All rows of an engine decode together (continuous batching): with n
rows a token takes `token_seconds + row_seconds·n`, and a new group takes a free place at once. Groups are started in
order while fewer than (1 + lag)·M of them are ahead of the newest version's batch, M per step:

    started < M·(version + 1 + lag)

`lag = 0` decodes a batch and trains it, by turns. A whole number is `cluster.lag`; a fraction is verl's
`staleness_threshold`; AReaL's η is the same rule. Where batches are `whole`, none is started before all rows of the one
before have ended: so do `cluster.lag` and verl's one step off. The trainer takes a step in `chunks`, each as soon as
its groups are there: in order, or, where `windowed`, those that are finished first. After a step engines and trainer
stop for `handover_seconds`, then all rows go on with the new weights.

What is left out: what a changed version costs the keys and values of unfinished rows, the lengths' change in the
course of a run, rewards, validation, losses of processes.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from oncurve.forecast import Machine

DECODE_FLOPS = 0.6
"""The share of a card's dense FLOP/s in decoding's matrix products. Assumed."""

DECODE_BANDWIDTH = 0.8
"""The share of the memory's bandwidth that decoding reaches. Assumed."""

LAUNCH_SECONDS = 0.002
"""Of a decode step whatever its size: scheduling, sampling, launches. Assumed."""

SIGMA = 0.745
"""σ of the logarithm of completions' lengths: fitted to two of verl's step times (`bench.scaling.fit`)."""

WARM_UP = 3
"""Steps that are not counted: the first ones fill the queue."""


def decode_seconds(parameters: float, cache_bytes: float, context: float, machine: Machine) -> tuple[float, float]:
    """Return `token_seconds` and `row_seconds` of an engine on one GPU, for rows with `context` tokens on average."""
    bandwidth = DECODE_BANDWIDTH * machine.bandwidth
    fixed = LAUNCH_SECONDS + 2 * parameters / bandwidth
    return fixed, 2 * parameters / (DECODE_FLOPS * machine.flops) + cache_bytes * context / bandwidth


@dataclass(frozen=True)
class Lengths:
    """Tokens of a completion: lognormal with this mean (before the limit) and σ of the logarithm, `limit` at most."""

    mean: float
    sigma: float
    limit: int

    def draw(self, random_: random.Random) -> int:
        """Return one length, 1 to `limit`."""
        if not self.sigma:
            return max(1, min(self.limit, round(self.mean)))
        drawn = random_.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return max(1, min(self.limit, round(drawn)))


@dataclass(frozen=True)
class Setup:
    """What is simulated.

    prompts, group_size   M groups per step, rows per group
    lengths          of the completions
    engines          that decode; each has `rows` places
    token_seconds, row_seconds   a token of n rows takes token_seconds + row_seconds·n
    train_seconds    per step; `chunks` parts, each with `chunk_seconds` of its own
    handover_seconds per step, in which engines and trainer stop
    lag, windowed, whole   see above
    """

    prompts: int
    group_size: int
    lengths: Lengths
    engines: int
    token_seconds: float
    row_seconds: float
    train_seconds: float
    rows: int = 1024
    chunks: int = 1
    chunk_seconds: float = 0.0
    handover_seconds: float = 0.0
    lag: float = 0.0
    windowed: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Outcome:
    """Means over the counted steps.

    step_seconds         from version to version
    rollout_busy, trainer_busy   shares of the time in which an engine has rows, the trainer works
    started, finished, trained   groups, all steps
    tokens               of the finished completions, all steps
    """

    step_seconds: float
    rollout_busy: float
    trainer_busy: float
    started: int
    finished: int
    trained: int
    tokens: int


class _Engine:
    """Rows that decode at one speed. `decoded`: tokens that a row which had been there for ever would have."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.ends: list[tuple[float, int]] = []
        self.decoded = 0.0
        self.now = 0.0
        self.busy = 0.0
        self.stamp = 0

    def pace(self) -> float:
        """Return the seconds per token."""
        return self.setup.token_seconds + self.setup.row_seconds * len(self.ends)

    def advance(self, time: float) -> None:
        """Decode until `time`; before it where a handover ends later."""
        if time > self.now:
            if self.ends:
                self.decoded += (time - self.now) / self.pace()
                self.busy += time - self.now
            self.now = time

    def next_end(self) -> float:
        """Return the time at which the shortest row ends."""
        return self.now + max(0.0, self.ends[0][0] - self.decoded) * self.pace() if self.ends else math.inf

    def stop(self, time: float, seconds: float) -> None:
        """Do nothing for so long."""
        self.advance(time)
        self.now += seconds


class Simulation:
    """One run of `setup`: `run(steps)`, once."""

    def __init__(self, setup: Setup, seed: int = 0) -> None:
        if setup.prompts % setup.chunks:
            raise ValueError(f"{setup.prompts} groups cannot be trained in {setup.chunks} equal parts")
        self.setup = setup
        self.random = random.Random(seed)
        self.engines = [_Engine(setup) for _ in range(setup.engines)]
        self.events: list[tuple[float, int, int]] = []
        self.left: dict[int, int] = {}
        self.finished: set[int] = set()
        self.version = self.started = self.ordered = self.done = self.taken = self.tokens = 0
        self.time = self.trained_seconds = 0.0

    def run(self, steps: int = 5) -> Outcome:
        """Simulate `steps` steps after the warm-up."""
        marks = []
        chunks, trainer_ends, left = self.setup.chunks, math.inf, self.setup.chunks
        part = self.setup.train_seconds / chunks + self.setup.chunk_seconds
        need = self.setup.prompts // chunks
        self._start()
        while self.version < WARM_UP + steps:
            if trainer_ends == math.inf and self._ready() - self.taken >= need:
                self.taken += need
                trainer_ends = self.time + part
            event = self.events[0][0] if self.events else math.inf
            if trainer_ends <= event:
                self.time, trainer_ends, left = trainer_ends, math.inf, left - 1
                self.trained_seconds += part
                if not left:
                    left = chunks
                    self._hand_over()
                    marks.append((self.time, self.trained_seconds, self._busy()))
            else:
                self._finish()
        (begin, trained, busy), (end, trained_to, busy_to) = marks[WARM_UP - 1], marks[-1]
        span = end - begin
        shares = ((busy_to - busy) / (span * len(self.engines)), (trained_to - trained) / span)
        return Outcome(span / steps, *shares, self.started, self.done, self.taken, self.tokens)

    def _ready(self) -> int:
        """Return the number of groups that the trainer may take, with those that it has taken."""
        return self.done if self.setup.windowed else self.ordered

    def _busy(self) -> float:
        return sum(engine.busy for engine in self.engines)

    def _start(self) -> None:
        """Start all groups that the lag and the engines' places allow, each on the engine with the fewest rows."""
        setup = self.setup
        most = math.floor(setup.prompts * (self.version + 1 + setup.lag) + 1e-9)
        if setup.whole:
            most = min(most, setup.prompts * (self.ordered // setup.prompts + 1))
        changed = set()
        while self.started < most:
            place = min(range(len(self.engines)), key=lambda index: len(self.engines[index].ends))
            engine = self.engines[place]
            if engine.ends and len(engine.ends) + setup.group_size > setup.rows:
                break
            engine.advance(self.time)
            for _ in range(setup.group_size):
                length = setup.lengths.draw(self.random)
                self.tokens += length
                heapq.heappush(engine.ends, (engine.decoded + length, self.started))
            self.left[self.started] = setup.group_size
            self.started += 1
            changed.add(place)
        for place in changed:
            self._schedule(place)

    def _schedule(self, place: int) -> None:
        engine = self.engines[place]
        engine.stamp += 1
        if engine.ends:
            heapq.heappush(self.events, (engine.next_end(), place, engine.stamp))

    def _finish(self) -> None:
        """End the next row; its group is finished with its last row."""
        time, place, stamp = heapq.heappop(self.events)
        engine = self.engines[place]
        if stamp != engine.stamp:
            return
        self.time = max(self.time, time)
        engine.advance(time)
        end, group = heapq.heappop(engine.ends)
        engine.decoded = max(engine.decoded, end)
        self.left[group] -= 1
        if not self.left[group]:
            del self.left[group]
            self.finished.add(group)
            self.done += 1
            while self.ordered in self.finished:
                self.finished.discard(self.ordered)
                self.ordered += 1
        self._schedule(place)
        self._start()

    def _hand_over(self) -> None:
        """Complete the trainer's step: all stop, take the new version and go on."""
        for place, engine in enumerate(self.engines):
            engine.stop(self.time, self.setup.handover_seconds)
            self._schedule(place)
        self.time += self.setup.handover_seconds
        self.version += 1
        self._start()


def simulate(setup: Setup, steps: int = 5, seed: int = 0) -> Outcome:
    """Return the outcome of `setup`. Raises ValueError where a step cannot be cut into its chunks."""
    return Simulation(setup, seed).run(steps)
