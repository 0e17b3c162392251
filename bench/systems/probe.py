"""Measuring a system from outside: exclusive seconds by phase, and token positions that the network processes."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.systems.worker import StepReport

__all__ = ["PHASES", "Probe"]

PHASES = ("prefill", "decode", "reward", "reference", "train", "optimizer")
"""The phases of a step in the results; the time between them is the rest of the step."""


class Probe:
    """Wrappers around a system's own functions. A phase's seconds exclude the phases inside it.

        probe.timed(engine, "generate", "decode")      # engine.generate is now watched
        probe.count_tokens(module)
        ... a step ...
        probe.report(seconds, lengths)                 # and starts again at 0

    Only the thread that made the probe is timed: other threads cost no time of the step.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.executed: Counter[str] = Counter()
        self.decode_steps = 0
        self._stack: list[str] = []
        self._since = 0.0
        self._thread = threading.get_ident()
        self._in_prefill = False
        self._prefill_over_at: list[float] = []  # the time, once it is over

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Return the time inside counts as `name`."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._switch()
        self._stack.append(name)
        try:
            yield
        finally:
            self._switch()
            self._stack.pop()

    def _switch(self) -> None:
        """Add the seconds since the last switch to the phase that ran."""
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def timed(self, holder: Any, name: str, phase: str | Callable[[], str]) -> None:
        """Replace `holder.name` by itself within `phase` (or within `phase()`, evaluated at each call)."""
        function = getattr(holder, name)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            with self.phase(phase if isinstance(phase, str) else phase()):
                return function(*arguments, **keywords)

        setattr(holder, name, watched)

    def timed_generate(self, holder: Any, name: str = "generate") -> None:
        """The same for a function that does prefill and decode in one: the network's second call ends the prefill."""
        function = getattr(holder, name)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            self._prefill_over_at.clear()
            self._in_prefill = True
            with self.phase("decode"):
                started = time.perf_counter()
                answer = function(*arguments, **keywords)
            if self._prefill_over_at:
                prefill = self._prefill_over_at[0] - started
                self.seconds["prefill"] += prefill
                self.seconds["decode"] -= prefill
            return answer

        setattr(holder, name, watched)

    def count_tokens(self, module: Any) -> None:
        """Count the ids that pass a transformers model's embedding, for the current phase."""
        module.get_input_embeddings().register_forward_pre_hook(self._count)

    def _count(self, module: Any, arguments: tuple[Any, ...]) -> None:
        phase = self._stack[-1] if self._stack else "rest"
        if phase == "decode" and self._in_prefill:
            phase, self._in_prefill = "prefill", False
        elif phase == "decode":
            self.decode_steps += 1
            if not self._prefill_over_at:
                self._prefill_over_at.append(time.perf_counter())
        self.executed[phase] += arguments[0].numel()

    def report(self, seconds: float, lengths: list[int], mismatch: float | None = None) -> StepReport:
        """Return the report of a step of `seconds`, with everything measured since the last report."""
        phases = {name: self.seconds[name] for name in PHASES if name in self.seconds}
        made = StepReport(seconds, phases, dict(self.executed), self.decode_steps, lengths, mismatch)
        self.seconds, self.executed, self.decode_steps = defaultdict(float), Counter(), 0
        return made
