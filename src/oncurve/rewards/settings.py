"""What every reward has in common: its settings, what its function takes, and where it runs.

Nothing here, and nothing that the reward kinds import, imports torch: workers load these modules too.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import AfterValidator, Field

from oncurve.paths import path_component
from oncurve.spec import Component
from oncurve.workers import Reply, WorkerPool, last_words

__all__ = ["Accepts", "InProcess", "RewardSettings", "Runner", "kind_meant", "unusable_answer"]

Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
"""A duration: more than nothing, a week at most."""


class Runner(Protocol):
    """Applies a reward function to items: in workers (`WorkerPool`), or here (`InProcess`)."""

    @property
    def about(self) -> Any:
        """What the function takes: `Accepts` as a mapping."""

    def run(self, items: Sequence[Any]) -> list[Reply]:
        """One reply an item, in order; a fault is a reply."""

    def close(self) -> None:
        """Give back what it holds."""


class Accepts(Component):
    """What a reward function wants to be given.

    batch        one call with lists for the whole batch (TRL's signature), instead of one call a completion
    needs        names that must be there; each entry lists alternatives, of which one suffices
    takes        names that are handed over where they exist
    everything   all columns are handed over (`**kwargs`)
    """

    batch: bool = False
    needs: tuple[tuple[str, ...], ...] = ()
    takes: tuple[str, ...] = ()
    everything: bool = False


def kind_meant(table: Any) -> str | None:
    """The kind of a `[[rewards]]` table that does not say it: "python" where it names code, else None: it must say."""
    return "python" if isinstance(table, Mapping) and table.keys() & {"path", "function"} else None


class RewardSettings(Component):
    """One table of `[[rewards]]`: the fields that every kind has.

    name              of the part in scores, logs and messages; the kind (or the function's name) unless given
    weight            reward = Σ weight * part, over the parts that apply to a completion
    on_error          what a fault (exception, timeout, NaN, wrong type ...) means: "mask": the completion takes no part
                      in statistics and loss; "raise": the run stops; a number: that is the part's value
    timeout_seconds   for one call of a function that runs in a worker
    """

    judges_steps: ClassVar[bool] = True
    """Whether a reward of this kind may judge steps, as process supervision needs it."""

    verifies: ClassVar[bool | None] = None
    """Whether the value 1 says that a completion is right. True: it checks an answer. False: it says something else.
    None: that is the user's to say; evaluation takes it so where it is the only reward that counts."""

    name: Annotated[str, Field(pattern=r"^[^<>\s]+$"), AfterValidator(path_component)] | None = None
    weight: float = 1.0
    on_error: Literal["mask", "raise"] | float = "mask"
    timeout_seconds: Seconds = 10.0

    @property
    def default_name(self) -> str:
        """The part's name when `name` is not given."""
        return type(self).__name__.lower()

    def complaint(self, row: Mapping[str, Any]) -> str | None:
        """What makes a row of the data useless to this reward, beyond a column that is missing; None: nothing."""
        return None

    def start(self, base: Path | None) -> Runner:
        """The runner of this reward. `base`: the folder against which paths in the settings are resolved."""
        raise TypeError(f"{type(self).__name__} does not say how it is run: a reward kind defines start()")


def unusable_answer(row: Mapping[str, Any], column: str) -> str | None:
    """Why the row's `column` cannot be an answer, which is text or a finite number; None: it can, or is missing.

    An empty string is an answer column that says that the reward does not apply to the row; null may be a mistake.
    """
    value = row.get(column, "")
    if value is None:
        return f"column {column!r} is empty (null); where the reward does not apply, write an empty string"
    if isinstance(value, str):
        return None
    if not isinstance(value, numbers.Real):
        return f"column {column!r} holds a {type(value).__name__}, and an answer is text or a number: {value!r:.60}"
    return None if math.isfinite(value) else f"column {column!r} holds {value}, which no answer can equal"


class WorkerSettings(RewardSettings):
    """A reward that runs in worker processes.

    processes              how many
    memory_limit_bytes     what each may allocate beyond its size once loaded
    start_timeout_seconds  for loading: importing the file and what it imports
    env_pass               names of environment variables that they see beside paths, language, threads and devices
    """

    processes: Annotated[int, Field(ge=1, le=1024)] = 2
    memory_limit_bytes: Annotated[int, Field(gt=0, le=1 << 50)] | None = 4 << 30
    start_timeout_seconds: Seconds = 300.0
    env_pass: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()

    def workers(self, factory: str, settings: Mapping[str, Any]) -> WorkerPool:
        """The pool that holds `factory(**settings)`."""
        return WorkerPool(
            factory,
            settings,
            processes=self.processes,
            timeout_seconds=self.timeout_seconds,
            memory_limit_bytes=self.memory_limit_bytes,
            start_timeout_seconds=self.start_timeout_seconds,
            env_pass=self.env_pass,
        )


class InProcess:
    """Runs a function on items in this process: no deadline, no memory limit; exceptions are replies all the same.

    KeyboardInterrupt and oncurve's own control flow (a step that is being abandoned) pass through.
    `reason`: why user code runs here, for the plan; None for oncurve's own checkers, which take linear time.
    """

    def __init__(self, function: Callable[[Any], Any], about: Accepts, reason: str | None = None) -> None:
        self._function = function
        self.reason = reason
        self.about: Any = about.model_dump()

    def run(self, items: Sequence[Any]) -> list[Reply]:
        """One reply an item, in order."""
        return [self._reply(item) for item in items]

    def _reply(self, item: Any) -> Reply:
        try:
            return Reply(self._function(item))
        except BaseException as error:  # user code may raise anything; the run goes on
            if isinstance(error, KeyboardInterrupt) or type(error).__module__.startswith("oncurve."):
                raise
            kind = (
                "exit" if isinstance(error, SystemExit) else "memory" if isinstance(error, MemoryError) else "exception"
            )
            return Reply(None, kind, last_words(error))

    def close(self) -> None:
        """Nothing is held."""
