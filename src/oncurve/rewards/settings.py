"""The base of all rewards: settings, the arguments of the function, and where the function runs.

Neither this module nor any import of the reward kinds imports torch, because workers load them too.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import AfterValidator, Field

from oncurve.base.errors import ConfigError
from oncurve.base.paths import path_component
from oncurve.components import Component, Impossible, unflagged
from oncurve.processes import LateError, kind_of_fault, last_words
from oncurve.processes.pool import WorkerPool, WorkerReply
from oncurve.rewards.functions.callables import Accepts
from oncurve.steps import splitter_of

Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
"""A duration: above 0, at most a week."""


def _checked_split(split: str) -> str:
    if ":" not in split or split.startswith("/"):  # code is loaded in workers only
        try:
            splitter_of(split)
        except ConfigError as error:
            raise ValueError(str(error)) from error
    return split


Split = Annotated[str, AfterValidator(_checked_split)]
"""A setting that names a splitter of steps (`oncurve.steps.splitter_of`)."""


class Runner(Protocol):
    """Applies a reward function to items: in workers (`WorkerPool`), or here (`InProcess`).

    A runner that works next to the sampler has `begin()`, which returns the items of one scoring as a `Job`, begun
    while others are still being sampled. It may have `keep_in(file)`, for what a resumed run needs, and an
    `announcement` for the plan, too.
    """

    @property
    def about(self) -> Any:
        """The arguments of the function: `Accepts` as a mapping."""

    def run(self, items: Sequence[Any]) -> list[WorkerReply]:
        """Return one reply per item, in order; a fault is a reply."""

    def close(self) -> None:
        """Release processes and memory."""


def kind_meant(table: Any) -> str | None:
    """Return the kind of a `[[rewards]]` table without a `kind`: "python" where it names code; None: `kind` is
    required.
    """
    return "python" if isinstance(table, Mapping) and table.keys() & {"path", "function"} else None


class RewardSettings(Component):
    """One table of `[[rewards]]`: the fields of every kind."""

    scores_steps: ClassVar[bool] = True
    """Whether a reward of this kind may score steps, which process supervision needs."""

    scores_turns: ClassVar[bool] = False
    """Whether the value is that of an environment, whose rewards of single turns are steps."""

    verifies: ClassVar[bool | None] = None
    """Whether the value 1 means that a completion is right. True: it checks an answer. False: it does not. None: not
    known; evaluation assumes it where this is the only reward that counts."""

    shapes: ClassVar[bool] = False
    """Whether it only shapes other rewards, by form or length: it says nothing about what is right, and evaluation
    looks for the verifier among the others."""

    impossible: ClassVar[tuple[Impossible, ...]] = ()
    """Settings of the reward that cannot be together; a message begins with the key."""

    default: ClassVar[str | None] = None
    """The name of a reward of this kind without a `name`; None: the name of the class in lower case."""

    @property
    def below_zero(self) -> bool:
        """Return whether its values may be below 0, which some advantages cannot use; so are punishments (`shapes`)."""
        return self.shapes

    @property
    def own_model(self) -> Literal["outcome", "process"] | None:
        """Return which kind of the run's own reward model gives the values; None: it does not take part."""
        return None

    @property
    def network(self) -> tuple[str, str] | None:
        """Path and dtype of a network that the reward loads; None: it loads none."""
        return None

    name: Annotated[str, Field(pattern=r"^[^<>\s]+$"), AfterValidator(path_component)] | None = None
    """The name in scores, logs and messages; none: the kind, or the function's name."""

    weight: float = 1.0
    """The weight w in reward = Σ w · value, over the rewards that apply to a completion."""

    on_error: Literal["mask", "raise"] | float = "mask"
    """What a fault (exception, timeout, NaN, wrong type ...) means: "mask": the completion takes no part in statistics
    and loss; "raise": the run stops; a number: the value of this reward."""

    timeout_seconds: Seconds = 10.0
    """The limit for one call of a function that runs in a worker."""

    @property
    def default_name(self) -> str:
        """The component's name when `name` is not given."""
        return self.default or type(self).__name__.lower()

    def complaint(self, row: Mapping[str, Any]) -> str | None:
        """Return why this reward cannot use a row of the data, other than for a missing column, or None if it can."""
        return None

    def for_lengths(self, longest: int) -> RewardSettings:
        """Return this reward where completions have at most `longest` tokens, with the settings that it takes from
        that.

        Raises ConfigError: its settings do not fit `longest`.
        """
        return self

    def start(self, base: Path | None) -> Runner:
        """Return the runner of this reward. `base`: the folder against which paths in the settings are resolved."""
        raise TypeError(f"{type(self).__name__} must define start()")


class AnswerReward(RewardSettings):
    """A reward that compares the completion's answer with a column."""

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = True
    answer: str = "answer"
    """The column that holds the right answer."""

    after: str | None = None
    """Only the text after the last occurrence of this counts (`</think>`); a completion without it gets 0."""

    def complaint(self, row: Mapping[str, Any]) -> str | None:
        """Return why the row's answer is neither text nor a finite number, or None if it is one of them, or missing.

        An empty string means that the reward does not apply to the row; null may be a mistake.
        """
        value = row.get(self.answer, "")
        if value is None:
            return f"column {self.answer!r} is empty (null); where the reward does not apply, write an empty string"
        if isinstance(value, str):
            return None
        if not isinstance(value, numbers.Real):
            held = f"a {type(value).__name__}, and an answer is text or a number: {value!r:.60}"
            return f"column {self.answer!r} holds {held}"
        return None if math.isfinite(value) else f"column {self.answer!r} holds {value}, which no answer can equal"


def check_reward(reward: object) -> str | None:
    """Return what is wrong with a reward, or with what it states of itself, or None."""
    name = type(reward).__name__
    if not isinstance(reward, RewardSettings):
        return f"{name} is no reward: derive it from oncurve.rewards.RewardSettings"
    if type(reward).start is RewardSettings.start:
        return f"{name} lacks start(base), which says how it is run, so it is no reward"
    return unflagged(reward, ("scores_steps", "shapes", *(() if reward.verifies is None else ("verifies",))))


class WorkerLimits(Component):
    """The limits of workers in which code of the user's runs."""

    processes: Annotated[int, Field(ge=1, le=1024)] = 2
    """Number of worker processes."""

    memory_limit_bytes: Annotated[int, Field(gt=0, le=1 << 50)] | None = 4 << 30
    """Memory that a worker may allocate in addition to its size after loading; none: no limit."""

    start_timeout_seconds: Seconds = 300.0
    """The limit for starting a worker: importing the file and its imports."""

    env_pass: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    """Environment variables passed to the workers, in addition to paths, language, threads and devices."""

    def pool(self, factory: str, settings: Mapping[str, Any], processes: int, timeout_seconds: float) -> WorkerPool:
        """Return a pool that holds `factory(**settings)`; an item may take `timeout_seconds`."""
        limits = self.model_dump(include={"memory_limit_bytes", "start_timeout_seconds", "env_pass"})
        return WorkerPool(factory, settings, processes=processes, timeout_seconds=timeout_seconds, **limits)


class WorkerSettings(WorkerLimits, RewardSettings):
    """A reward that runs in worker processes."""

    def workers(self, factory: str, settings: Mapping[str, Any]) -> WorkerPool:
        """Return the pool that holds `factory(**settings)`."""
        return self.pool(factory, settings, self.processes, self.timeout_seconds)


def _reply(function: Callable[..., Any], *given: Any) -> WorkerReply:
    try:
        return WorkerReply(function(*given))
    except BaseException as error:  # user code may raise anything; the run goes on
        ours = type(error).__module__.startswith("oncurve.") and not isinstance(error, LateError)
        if ours or isinstance(error, KeyboardInterrupt):
            raise
        return WorkerReply(None, kind_of_fault(error), last_words(error))


def settled(reply: WorkerReply) -> WorkerReply:
    """Return a reply whose value may be a future, when that has its result."""
    return _reply(reply.value.result) if isinstance(reply.value, Future) else reply


class InProcess:
    """Runs a function on items in this process, without deadline or memory limit; an exception becomes a reply.

    KeyboardInterrupt and oncurve's own control flow (a step that is being abandoned) pass through.
    `reason`: why user code runs here, for the plan; None for oncurve's own checkers, which take linear time.
    """

    def __init__(self, function: Callable[[Any], Any], about: Accepts, reason: str | None = None) -> None:
        self._function, self.reason = function, reason
        self.about: Any = about.as_json()

    def run(self, items: Sequence[Any]) -> list[WorkerReply]:
        """Return one reply per item, in order."""
        return list(map(settled, self.begun(items)))

    def begun(self, items: Sequence[Any]) -> list[WorkerReply]:
        """Return the same, where the value of a coroutine function is a future still."""
        return [_reply(self._function, item) for item in items]

    def close(self) -> None:
        """Nothing is held."""


class Local(RewardSettings):
    """A reward of oncurve's that is computed in this process, in time linear in the completion."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The names in an item that a call gets, in this order: those of its parameters."""
        return tuple(inspect.signature(self.__call__).parameters)

    def start(self, base: Path | None) -> Runner:
        """Run in this process; no user code is involved."""
        return InProcess(self.value, Accepts(needs=tuple((name,) for name in self.reads)))

    def value(self, item: Mapping[str, Any]) -> Any:
        """Return the value of an item."""
        return self(*(item[name] for name in self.reads))

    def __call__(self, *read: Any, **named: Any) -> Any:
        """Return the value, from what the reward `reads`."""
        raise TypeError(f"{type(self).__name__} defines no value")
