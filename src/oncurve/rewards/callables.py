"""User functions as rewards: three signatures, told apart by the names of their parameters, called in one way.

    columns   f(completion, answer, ...) -> float | None              one completion; parameters are columns by name
    TRL       f(prompts, completions, **columns) -> list[float | None] the whole batch; may be async
    verl      compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | {"score": float, ...}

The same adapter runs in a worker and in this process.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oncurve.errors import ConfigError
from oncurve.rewards.settings import Accepts
from oncurve.spec import locate

__all__ = ["Adapted", "served"]

OFFERED = ("completion", "prompt", "completion_ids")
TRL_NAMES = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
VERL_TRUTH = ("reward_model", "ground_truth", "answer")


class Adapted:
    """A user function behind one door: `adapted(item)` for the items that `about` describes.

    Raises ConfigError for a function whose parameters cannot be filled by name.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        name = getattr(function, "__name__", type(function).__name__)
        if not callable(function):
            raise ConfigError(f"reward {function!r:.60} is a {name}, not a function")
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise ConfigError(f"reward {name}: its parameters cannot be read; wrap it in a def") from error
        if not parameters:
            raise ConfigError(f"reward {name} takes nothing; it is given columns by name: def reward(completion)")
        self._everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        fixed = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
        if fixed:
            raise ConfigError(f"reward {name}: parameter {fixed[0]} cannot be given by name; write it as a plain one")
        self._names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        self._required = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.default is p.empty]
        self._call, accepts = self._signature()
        self.about: Any = accepts.model_dump()
        self.accepts = accepts

    def _signature(self) -> tuple[Callable[[Mapping[str, Any]], Any], Accepts]:
        """Which of the three it is, and what that one is given."""
        if {"solution_str", "ground_truth"} <= set(self._names):
            takes = ("completion", "data_source", *VERL_TRUTH, "extra_info")
            return self._verl, Accepts(needs=(VERL_TRUTH,), takes=takes)
        if "completions" in self._names:
            columns = tuple(n for n in self._names if n not in TRL_NAMES)
            needs = tuple((n,) for n in columns if n in self._required)
            offered = tuple(n for n in TRL_NAMES if n in self._names)
            return self._trl, Accepts(batch=True, needs=needs, takes=columns + offered, everything=self._everything)
        needs = tuple((n,) for n in self._required)
        return self._columns, Accepts(needs=needs, takes=tuple(self._names), everything=self._everything)

    def __call__(self, item: Mapping[str, Any]) -> Any:
        """What the function says: a value, or for a batch `{"rewards", "metrics", "extras"}`."""
        return self._call(item)

    def _columns(self, item: Mapping[str, Any]) -> Any:
        return _awaited(self._function(**item))

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
        value = _awaited(self._function(**{name: offered[name] for name in self._names if name in offered}))
        return value["score"] if isinstance(value, Mapping) else value

    def _trl(self, item: Mapping[str, Any]) -> Any:
        metrics: dict[str, list[float]] = {}
        extras: dict[str, list[Any]] = {}
        offered = {
            "prompts": item["prompts"],
            "completions": item["completions"],
            "completion_ids": item["completion_ids"],
            "trainer_state": SimpleNamespace(global_step=item["step"]),
            "log_metric": lambda name, value: metrics.setdefault(name, []).append(float(value)),
            "log_extra": lambda name, values: extras.setdefault(name, []).extend(values),
        }
        wanted = {n: v for n, v in offered.items() if n in self._names or (self._everything and n == "prompts")}
        rewards = _awaited(self._function(**{**item["columns"], **wanted}))
        return {"rewards": rewards, "metrics": metrics, "extras": extras}


def _awaited(value: Any) -> Any:
    """The result of a coroutine function; also where an event loop is running already (a notebook)."""
    if not inspect.isawaitable(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_wait(value))
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _wait(value)).result()


def _wait(value: Any) -> Coroutine[Any, Any, Any]:
    async def waiting() -> Any:
        return await value

    return waiting()


def served(path: str | None = None, pickled: str | None = None, base: str | None = None) -> Adapted:
    """The worker's side: the function at `path`, or the one in cloudpickle bytes (base64) that our parent made."""
    if path is not None:
        return Adapted(locate(path, Path(base) if base else None))
    import cloudpickle  # here: only a worker unpickles, and only what its own parent pickled

    return Adapted(cloudpickle.loads(base64.b64decode(pickled or "")))
