"""The health of a fleet's processes, as a state machine, and the clock that it goes by.

`Health` does nothing itself: it is told what happens and when, and answers with orders. So all its cases can be tested
without a process and without a clock, and every kind of fleet behaves the same.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

PAUSES = (0.0, 0.0, 2.0)
"""Seconds before a place gets a process, by the number of recent deaths."""

DEATHS, WITHIN_SECONDS = 3, 60.0
"""A place is put in quarantine after so many deaths within this time."""

QUARANTINE_SECONDS, LONGEST_QUARANTINE_SECONDS = 60.0, 960.0
"""The length of a place's first quarantine, and of the longest; each is twice as long as the one before it."""

FORGIVEN_SECONDS = 600.0
"""After a process has been up for so long, the next quarantine of its place is the shortest one."""

START_SECONDS = 600.0
"""For importing everything and making the object; a fork of it takes milliseconds."""

LONGEST_TURN_SECONDS = 1.0
"""The most seconds between two rounds of listening that can pass for silence."""


@dataclass(frozen=True)
class ProcessEnded:
    """`process` has ended, and `cause` is the first thing that went wrong with it.

    quarantine   seconds for which its place stays empty; 0 where another process follows soon
    """

    process: int
    cause: str
    quarantine: float = 0.0

    @property
    def consequence(self) -> str:
        """The quarantine, as the end of a message: empty where there is none."""
        if not self.quarantine:
            return ""
        return f"; after {DEATHS} deaths in a minute its place stays empty for {self.quarantine:g} seconds"


@dataclass(frozen=True)
class Start:
    """Order: start a process with the number `process` in `place`."""

    place: int
    process: int


@dataclass(frozen=True)
class Kill:
    """Order: end `process`, because of `cause`."""

    process: int
    cause: str


Order = Start | Kill
_EMPTY = ("resting", "quarantined")
Phase = Literal["resting", "starting", "up", "dying", "quarantined"]


@dataclass
class _Place:
    """A place, as far as is known.

    since        of its phase
    heard        when its process last said something
    up_at        since when its process is up
    quarantines  in a row
    """

    phase: Phase = "resting"
    process: int = -1
    since: float = 0.0
    heard: float = 0.0
    cause: str | None = None
    deaths: list[float] = field(default_factory=list)
    quarantines: int = 0
    up_at: float | None = None

    @property
    def quarantine(self) -> float:
        """Seconds of the present, or the last, quarantine."""
        return min(LONGEST_QUARANTINE_SECONDS, QUARANTINE_SECONDS * 2.0 ** min(self.quarantines - 1, 10))

    @property
    def pause(self) -> float:
        """Seconds for which the place stays empty."""
        return self.quarantine if self.phase == "quarantined" else PAUSES[len(self.deaths)]


class Health:
    """The states of a fleet's places, as a state machine: events and the time in, orders out.

        resting --pause over: Start--> starting --is_up--> up --has_ended--> resting, or quarantined
        starting, up --silent for too long: Kill--> dying --has_ended--> ...
        quarantined --its time over: Start--> starting

    `now` is any clock's seconds, the same one throughout.
    """

    def __init__(self, places: int, silence_seconds: float, start_seconds: float) -> None:
        """`silence_seconds`: a process that says nothing for so long hangs. `start_seconds`: it must be up by then."""
        self._places = [_Place() for _ in range(places)]
        self._silence, self._start = silence_seconds, start_seconds
        self._processes = 0

    @property
    def up(self) -> list[int]:
        """The processes that can be called, by place."""
        return [place.process for place in self._places if place.phase == "up"]

    @property
    def starting(self) -> bool:
        """Return whether a process is starting, or about to be."""
        soon = [place for place in self._places if place.phase == "resting" and not place.pause]
        return bool(soon) or any(place.phase in ("starting", "dying") for place in self._places)

    @property
    def quarantined(self) -> bool:
        """Return whether every place is in quarantine."""
        return all(place.phase == "quarantined" for place in self._places)

    def is_up(self, process: int, now: float) -> None:
        """`process` has started."""
        for place in self._of(process, "starting"):
            place.phase, place.since, place.heard, place.up_at = "up", now, now, now

    def is_queued(self, process: int, now: float) -> None:
        """`process` is not started yet: the time that it has for its start has not begun."""
        for place in self._of(process, "starting"):
            place.since = place.heard = now

    def heard(self, process: int, now: float) -> None:
        """`process` has said something."""
        for place in self._of(process, "starting", "up"):
            place.heard = now

    def condemn(self, process: int, cause: str) -> list[Order]:
        """Return `process` is to end, because of `cause`: the first cause is kept."""
        orders: list[Order] = []
        for place in self._of(process, "starting", "up"):
            place.phase, place.cause = "dying", cause
            orders.append(Kill(process, cause))
        return orders

    def has_ended(self, process: int, cause: str, now: float) -> ProcessEnded | None:
        """Return `process` has ended, as far as is known because of `cause`; what to say of it, None: it is known
        already.
        """
        for place in self._of(process, "starting", "up", "dying"):
            first = place.cause or cause
            place.deaths = [when for when in place.deaths if now - when < WITHIN_SECONDS] + [now]
            if place.up_at is not None and now - place.up_at >= FORGIVEN_SECONDS:
                place.quarantines = 0
            place.process, place.since, place.cause, place.up_at = -1, now, None, None
            if len(place.deaths) < DEATHS:
                place.phase = "resting"
                return ProcessEnded(process, first)
            place.phase, place.deaths = "quarantined", []
            place.quarantines += 1
            return ProcessEnded(process, first, place.quarantine)
        return None

    def orders(self, now: float) -> list[Order]:
        """Return the orders that are due now."""
        found: list[Order] = []
        for number, place in enumerate(self._places):
            if place.phase in _EMPTY and now >= place.since + place.pause:
                place.phase, place.process, place.since, place.heard = "starting", self._processes, now, now
                self._processes += 1
                found.append(Start(number, place.process))
            elif place.phase == "starting" and now - place.since > self._start:
                found += self.condemn(place.process, f"it did not start within {self._start:g} seconds")
            elif place.phase == "up" and now - place.heard > self._silence:
                found += self.condemn(
                    place.process,
                    f"it hangs or was stopped: silent for {self._silence:g} seconds (cluster.silence_seconds)",
                )
        return found

    def _of(self, process: int, *phases: Phase) -> Sequence[_Place]:
        return [place for place in self._places if place.process == process >= 0 and place.phase in phases]


class ListeningClock:
    """Seconds for which this process has listened, `now`, as of the last `turn`.

    A turn counts for one second at most: a process that was stopped (Ctrl-Z), or waited for a processor, finds messages
    that it has not read, and their senders were not silent. `clock_seconds` is a monotonic clock (for tests).
    """

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock_seconds
        self._read, self.now = clock_seconds(), 0.0

    def turn(self) -> None:
        """A round of listening has ended."""
        before, self._read = self._read, self._clock()
        self.now += min(self._read - before, LONGEST_TURN_SECONDS)
