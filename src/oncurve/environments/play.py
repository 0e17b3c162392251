"""A worker's side: the episodes that are being played in this process, by their keys.

The random numbers of their calls are here as well, and the event loop in which their coroutines run next to each other.
"""

import base64
import inspect
import os
import random
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from types import coroutine
from typing import Any

from oncurve.base.event_loop import event_loop
from oncurve.environments.episode import Episode, Reply, ToolCall

MOST_CALLS = 64
"""The most tool calls of one turn that are made; a turn with more gets an error for each of the others."""

_one_at_a_time = threading.Lock()


class Player:
    """Plays the episodes that `make` makes: one call per item, `player({"act": "start", ...})`. Where the environment
    is asynchronous it returns a future, and the coroutines of all episodes run next to each other.

    act   start: row, prompt -> said
          reply: text, calls -> messages, reward, done, errors, and what `end` returns where it is done
          end: -> outcome, and with `keep` the environment, pickled unless this is the process of the run (`here`)
    key   of the episode; one that is not played in this process is `lost`
    """

    here = False

    def __init__(self, make: Callable[[], Episode]) -> None:
        self._make, first = make, make()
        self._free, self._live = [first], dict[str, Episode]()
        self._shown = dict[str, Episode]()  # whose environment rewards may look at until the next one of its key begins
        self.about = {"tools": first.tools, "answers": first.answers, "scores": first.scores}

    def __call__(self, item: Mapping[str, Any]) -> Any:
        """Return what the episode says to an item."""
        steps, draws, value = self._steps(item), Draws(item["seed"]), None
        try:
            while not inspect.isawaitable(value):
                with draws:
                    value = steps.send(value)
        except StopIteration as end:
            return end.value
        return run(_rest(steps, value), draws)

    def _steps(self, item: Mapping[str, Any]) -> Generator[Any, Any, Any]:
        """Return what the episode says to an item. What the environment returns is yielded, because it may be a
        coroutine, and its value is sent back. An episode is live between its items: after an exception it may be in any
        state.
        """
        act, key = item["act"], item["key"]
        episode, found = self._live.pop(key, None), dict[str, Any]()
        if act == "start":
            if key in self._shown:
                self._free.append(self._shown.pop(key))
                yield self._free[-1].close()  # type: ignore[func-returns-value]
            episode = self._free.pop() if self._free else self._make()
            found = {"said": _said((yield episode.start(item["row"], item["prompt"])))}
        elif episode is None:
            return {"lost": True}
        elif act == "reply":
            calls = [ToolCall(each["name"], each["arguments"]) for each in item["calls"]]
            reply = yield episode.reply(item["text"], calls)
            if not isinstance(reply, Reply):
                raise TypeError(f"reply() returned {reply!r:.60}; return Reply([...])")
            messages = [
                {**each, "role": str(each["role"]), "content": _said(each["content"])} for each in reply.messages
            ]
            found = {**vars(reply), "messages": messages, "reward": number(reply.reward)}
        if act == "start" or not found.get("done", True):
            self._live[key] = episode
            return found
        found |= {"outcome": number((yield episode.score())), "environment": None}
        if item["keep"]:
            environment = getattr(episode, "environment", episode)
            found["environment"] = environment if self.here else _copied(environment)
        if item["keep"] and self.here:
            self._shown[key] = episode
        else:
            yield episode.close()  # type: ignore[func-returns-value]
            self._free.append(episode)
        return found


async def _rest(steps: Generator[Any, Any, Any], value: Any) -> Any:
    try:
        while True:
            value = steps.send(await value if inspect.isawaitable(value) else value)
    except StopIteration as end:
        return end.value


def pickled(value: Any) -> str | None:
    """Return a value as cloudpickle bytes in base64; None: it cannot be copied."""
    import cloudpickle  # here: few workers need it

    try:
        return base64.b64encode(cloudpickle.dumps(value)).decode()
    except Exception:  # picklers raise anything
        return None


def _copied(environment: Any) -> str:
    """Return an environment for rewards in other processes, without attributes that cannot leave this one."""
    whole = pickled(environment)
    if whole is None:
        rest = object.__new__(type(environment))
        rest.__dict__.update({name: value for name, value in vars(environment).items() if pickled(value) is not None})
        whole = pickled(rest)
    if whole is None:
        raise TypeError(f"a {type(environment).__name__} cannot be copied for the rewards that take it")
    return whole


def number(value: Any) -> float | None:
    """Return a reward, or None. Raises TypeError: it is something else."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise TypeError(f"a reward is a number or None, and this is {value!r:.60}") from None


def _said(value: Any) -> Any:
    """Return what an episode says. Raises TypeError: it is neither text nor messages, nor parts of a message."""
    parts = isinstance(value, (list, tuple)) and all(isinstance(each, Mapping) for each in value)
    if value is None or isinstance(value, str) or parts:
        return value
    raise TypeError(f"it says a {type(value).__name__} ({value!r:.60}), and neither text nor messages")


def taken(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function of the user's names. Raises TypeError: it needs others."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return dict(given)
    named = [each for each in parameters if each.kind is not each.VAR_POSITIONAL]
    missing = [each.name for each in named if each.name not in given and each.default is each.empty]
    if missing:
        raise TypeError(f"it takes {missing[0]!r}, and it can be given: {', '.join(given)}")
    return {each.name: given[each.name] for each in named if each.name in given}


class Draws:
    """Python's and numpy's global generators as one call has them, whatever runs between its parts: `with draws: ...`.

    seed   of the first part; the others go on where the part before has ended
    """

    def __init__(self, seed: int) -> None:
        self._resumed = [partial(seed_all, seed)]

    def __enter__(self) -> None:
        _one_at_a_time.acquire()
        for resume in self._resumed:
            resume()

    def __exit__(self, *_: object) -> None:
        numpy = sys.modules.get("numpy")
        self._resumed = [partial(random.setstate, random.getstate())]
        self._resumed += [] if numpy is None else [partial(numpy.random.set_state, numpy.random.get_state())]
        _one_at_a_time.release()


def seed_all(seed: int) -> None:
    """Seed Python's and numpy's global generators."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


_drawing: ContextVar[Draws] = ContextVar("draws")


def run(called: Coroutine[Any, Any, Any], draws: Draws) -> Future[Any]:
    """Begin to run a coroutine in the event loop. It and its tasks have these draws."""
    import asyncio  # here: it takes long to import, and few environments need it

    _drawing.set(draws)
    return asyncio.run_coroutine_threadsafe(called, event_loop(os.getpid(), "episodes", _task))


def _task(loop: Any, inner: Any, **named: Any) -> Any:
    import asyncio

    return asyncio.Task(_drawn(inner), loop=loop, **named)


async def _drawn(inner: Any) -> Any:
    return await _parts(inner)


@coroutine
def _parts(inner: Any) -> Generator[Any, Any, Any]:
    """Run a coroutine, each of whose parts has the draws of its call."""
    draws, resume, value = _drawing.get(), inner.send, None
    while True:
        with draws:
            try:
                waits = resume(value)
            except StopIteration as end:
                return end.value
        try:
            resume, value = inner.send, (yield waits)
        except BaseException as thrown:
            resume, value = inner.throw, thrown
