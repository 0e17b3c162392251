"""User functions as rewards: three signatures, told apart by the names of their parameters, called in one way.

    columns   f(completion, answer, ...) -> float | None              one completion; parameters are columns by name
    TRL       f(prompts, completions, **columns) -> list[float | None] the whole batch; may be async
    verl      compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | {"score": float, ...}

For process supervision each of them may return the rewards of a completion's steps in place of a number:

    {"reward": 1.0, "steps": [0.2, 0.9, 1.0]}          one number per step that `split` finds
    {"reward": 1.0, "steps": [[12, 0.2], [30, 0.9]]}   [offset in the text just after the step, number]: own steps

Without "reward" the reward is the mean of the steps. A function of one completion with a parameter `completion_steps`
receives the texts of the steps that `split` finds, and may return the list of numbers alone. The same adapter runs in a
worker and in this process.
"""

from __future__ import annotations

import base64
import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oncurve.base.errors import ConfigError, suggest
from oncurve.base.event_loop import event_loop
from oncurve.base.imports import locate
from oncurve.processes import LateError
from oncurve.steps import Splitter, lines, pieces, splitter_of

OFFERED = ("completion", "prompt", "completion_ids", "episode")
TRL_NAMES = ("prompts", "completions", "completion_ids", "environments", "trainer_state", "log_extra", "log_metric")
VERL_TRUTH = ("reward_model", "ground_truth", "answer")
STEPS = "completion_steps"


class Adapted:
    """A user function of any signature, called in one way: `adapted(item)` for the items that `about` describes.

    split    finds the steps of a completion, where the function takes or scores them
    kwargs   keyword arguments of every call, in place of columns of these names
    seconds  that the result of a coroutine may take; None: any time

    Raises ConfigError for a function whose parameters cannot be filled by name, or that does not take the `kwargs`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        split: Splitter = lines,
        kwargs: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> None:
        self._split, self._kwargs, self._seconds = split, dict(kwargs or {}), seconds
        self._function: Callable[..., Any] = lambda **given: function(**{**given, **self._kwargs})
        name = getattr(function, "__name__", type(function).__name__)
        if not callable(function):
            raise ConfigError(f"reward {function!r:.60} is no function (its type is {name})")
        if inspect.isclass(function):
            raise ConfigError(f"reward {name} is a class, and a function or an object is called: give {name}()")
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise ConfigError(f"reward {name}: its parameters cannot be read; wrap it in a def") from error
        if not parameters:
            raise ConfigError(f"reward {name} has no parameters; columns are passed by name: def reward(completion)")
        self._everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        fixed = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
        if fixed:
            raise ConfigError(f"reward {name}: parameter {fixed[0]} cannot be given by name; write it as a plain one")
        named = {p.name: p.default is p.empty for p in parameters if p.kind is not p.VAR_KEYWORD}
        self._check_kwargs(name, named)
        self._names = [each for each in named if each not in self._kwargs]
        self._required = [each for each in self._names if named[each]]
        self._call, accepts = self._signature()
        self.about: Any = accepts.as_json()
        self.accepts = accepts

    def _check_kwargs(self, name: str, named: Collection[str]) -> None:
        """Raises ConfigError: the function does not take one of the `kwargs`, or gets it from the completion."""
        for key in self._kwargs:
            if key in (*OFFERED, *TRL_NAMES, "solution_str", "ground_truth", STEPS):
                raise ConfigError(f"reward {name}: kwargs: {key!r} is what is to be rewarded, so it cannot be given")
            if key not in named and not self._everything:
                raise ConfigError(f"reward {name}: kwargs: it takes no {key!r}{suggest(key, named)}")

    def _signature(self) -> tuple[Callable[[Mapping[str, Any]], Any], Accepts]:
        """Return the call for the function's signature, and the arguments that it takes."""
        if {"solution_str", "ground_truth"} <= set(self._names):
            takes = ("completion", "data_source", *VERL_TRUTH, "extra_info")
            return self._verl, Accepts(needs=(VERL_TRUTH,), takes=takes)
        if {"completions", "environments"} & {*self._names}:
            columns = tuple(n for n in self._names if n not in TRL_NAMES)
            needs = tuple((n,) for n in columns if n in self._required)
            offered = tuple(n for n in TRL_NAMES if n in self._names)
            return self._trl, Accepts(batch=True, needs=needs, takes=columns + offered, everything=self._everything)
        needs = tuple((n,) for n in self._required if n != STEPS)
        used = dict.fromkeys((*self._names, "completion"))  # whose text the steps are in
        used.pop(STEPS, None)
        return self._columns, Accepts(needs=needs, takes=tuple(used), everything=self._everything)

    def __call__(self, item: Mapping[str, Any]) -> Any:
        """Return the function's value, or for a batch `{"rewards", "metrics", "extras"}`; of a coroutine a future."""
        return self._call(item)

    def _columns(self, item: Mapping[str, Any]) -> Any:
        text = item["completion"]
        given = {name: value for name, value in item.items() if self._everything or name in self._names}
        if STEPS in self._names:
            given[STEPS] = pieces(text, self._split(text))

        def finish(value: Any) -> Any:
            steps_alone = STEPS in self._names and isinstance(value, (list, tuple))
            return self._with_steps({"steps": value} if steps_alone else value, text)

        return later(self._function(**given), finish, self._seconds)

    def _with_steps(self, value: Any, text: str) -> Any:
        """Return the function's value for `text`, with steps as `step_ends` and `step_rewards`.

        Raises ValueError: numbers for another number of steps, or steps that lie outside the text.
        """
        if not isinstance(value, Mapping) or "steps" not in value:
            return value
        steps = list(value["steps"])
        if steps and all(isinstance(step, (list, tuple)) and len(step) == 2 for step in steps):
            ends = [end.tolist() if hasattr(end, "tolist") else end for end, _ in steps]
            rewards = [reward for _, reward in steps]
            inside = all(type(end) is int and 0 < end <= len(text) for end in ends)
            if not inside or ends != sorted(set(ends)):
                raise ValueError(f"its steps end at {ends!r:.60} in a completion of {len(text)} characters")
        else:
            ends, rewards = self._split(text), steps
            if len(ends) != len(rewards):
                raise ValueError(f"it returned {len(rewards)} step rewards for a completion of {len(ends)} steps")
        return {"reward": value.get("reward", value.get("score")), "step_ends": ends, "step_rewards": rewards}

    def _verl(self, item: Mapping[str, Any]) -> Any:
        stored = item.get("reward_model")
        in_model = isinstance(stored, Mapping) and "ground_truth" in stored
        truth = stored["ground_truth"] if in_model else item.get("ground_truth", item.get("answer"))  # type: ignore[index]
        offered = {
            "data_source": item.get("data_source"),
            "solution_str": item["completion"],
            "ground_truth": truth,
            "extra_info": item.get("extra_info"),
        }

        def finish(value: Any) -> Any:
            found = self._with_steps(value, item["completion"])
            return found["score"] if found is value and isinstance(value, Mapping) else found

        return later(self._function(**{n: v for n, v in offered.items() if n in self._names}), finish, self._seconds)

    def _trl(self, item: Mapping[str, Any]) -> Any:
        metrics: dict[str, list[float]] = {}
        extras: dict[str, list[Any]] = {}
        offered = trl_arguments(item, SimpleNamespace(global_step=item["step"]), metrics, extras)
        names = {*self._names, *(("prompts", "completions") if self._everything else ())}
        wanted = {n: v for n, v in offered.items() if n in names}

        def finish(rewards: Any) -> Any:
            if isinstance(rewards, (list, tuple)) and len(rewards) == len(item["completions"]):
                # the offsets of steps are those of a text, and an episode is several
                texts = [c if isinstance(c, str) else c[-1]["content"] * (len(c) == 1) for c in item["completions"]]
                rewards = [self._with_steps(reward, text) for reward, text in zip(rewards, texts, strict=True)]
            return {"rewards": rewards, "metrics": metrics, "extras": extras}

        return later(self._function(**{**item["columns"], **wanted}), finish, self._seconds)


def trl_arguments(
    item: Mapping[str, Any], state: Any, metrics: dict[str, list[float]], extras: dict[str, list[Any]]
) -> dict[str, Any]:
    """Return TRL's arguments of a reward function; what it logs goes to `metrics` and `extras`, by name."""
    return {
        "prompts": item["prompts"],
        "completions": item["completions"],
        "completion_ids": item["completion_ids"],
        "environments": [unpickled(each) for each in item.get("environments") or ()],
        "trainer_state": state,
        "log_metric": lambda name, value: metrics.setdefault(str(name), []).append(float(value)),
        "log_extra": lambda name, values: extras.setdefault(str(name), []).extend(values),
    }


def unpickled(given: Any) -> Any:
    """Return the object in cloudpickle bytes (base64) of this run's own processes; what is no text, as it is."""
    import cloudpickle  # here: few rewards need it

    return cloudpickle.loads(base64.b64decode(given)) if isinstance(given, str) else given


_Timeout = type("TimeoutError", (TimeoutError,), {"__module__": "builtins"})
"""Of the built-in one a future makes another, which has no line of user code."""


def later(value: Any, then: Callable[[Any], Any], seconds: float | None = None) -> Any:
    """Return `then(value)`; for a coroutine a future of `then` of its result, which is late after `seconds`.

    All coroutines of a process run next to each other in one event loop, also where another one is running (a
    notebook). So a client which a function keeps open serves its next call too.
    """
    if not inspect.isawaitable(value):
        return then(value)
    import asyncio  # here: it is slow to import, and few rewards need it

    async def rest() -> Any:
        task = asyncio.ensure_future(value)
        try:
            if not (await asyncio.wait({task}, timeout=seconds))[0]:
                raise LateError(f"no answer within {seconds:g} seconds (timeout_seconds)")
            return then(task.result())
        except TimeoutError as error:
            raise _Timeout(*error.args).with_traceback(error.__traceback__) from None
        finally:
            task.cancel()

    return asyncio.run_coroutine_threadsafe(rest(), event_loop(os.getpid(), "rewards"))


def served(
    path: str | None = None,
    pickled: str | None = None,
    base: str | None = None,
    split: str = "newline",
    kwargs: Mapping[str, Any] | None = None,
    seconds: float | None = None,
) -> Adapted:
    """Return the worker's side: the function at `path`, or the one in the parent's cloudpickle bytes (base64)."""
    folder = Path(base) if base else None
    splitter = splitter_of(split, folder)
    return Adapted(unpickled(pickled) if path is None else locate(path, folder), splitter, kwargs, seconds)


@dataclass(frozen=True, kw_only=True)
class Accepts:
    """The arguments that a reward function takes.

    batch        one call with lists for the whole batch (TRL's signature), instead of one call per completion
    needs        names that must exist; each entry lists alternatives, of which one suffices
    takes        names that are passed where they exist
    everything   all columns are passed (`**kwargs`)
    """

    batch: bool = False
    needs: tuple[tuple[str, ...], ...] = ()
    takes: tuple[str, ...] = ()
    everything: bool = False

    def wants(self, name: str) -> bool:
        """Return whether the function is given what has this name."""
        return self.everything or name in self.takes or any(name in names for names in self.needs)

    def as_json(self) -> dict[str, Any]:
        """As a worker sends it; `told` reads it."""
        return asdict(self)

    @classmethod
    def told(cls, about: Accepts | Mapping[str, Any]) -> Accepts:
        """Return what a runner is `about`: in this process the object, from a worker JSON."""
        if isinstance(about, Accepts):
            return about
        needs = tuple(tuple(names) for names in about.get("needs", ()))
        return cls(**{**about, "needs": needs, "takes": tuple(about.get("takes", ()))})


MATCHER = f"{__name__}:Matcher"


class Matcher:
    """The worker's side of rewards that are a regular expression.

    1.0 where `pattern` is found in a completion (`mode` "search") or is all of it ("full"), else 0.0.
    """

    about = Accepts(needs=(("completion",),)).as_json()

    def __init__(self, pattern: str, mode: str) -> None:
        compiled = re.compile(pattern)
        self._match = compiled.search if mode == "search" else compiled.fullmatch

    def __call__(self, item: Mapping[str, Any]) -> float:
        """Return 1.0 or 0.0 for `{"completion": text}`."""
        return float(self._match(item["completion"]) is not None)
