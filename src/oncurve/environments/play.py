"""A worker's side: the episodes that are being played in this process, by their keys."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any

from oncurve.environments.draws import Draws, run
from oncurve.environments.episode import Episode, ToolCall

MOST_CALLS = 64
"""The most tool calls of one turn that are made; a turn with more gets an error for each of the others."""


class Player:
    """Plays the episodes that `make` makes: one call per item, `player({"act": "start", ...})`. Where the environment
    is asynchronous it returns a future, and the coroutines of all episodes run next to each other.

    act      start: row, prompt -> said
             reply: text, calls -> messages, reward, done, errors, and what `end` returns where it is done
             end: -> outcome, and with `keep` the environment, pickled unless this is the process of the run (`here`)
    key      of the episode; one that is not played in this process is `lost`
    rollout  its number; episodes of earlier ones are forgotten
    """

    def __init__(self, make: Callable[[], Episode], here: bool = False) -> None:
        self._make, self._here = make, here
        self._free = [make()]
        self._live: dict[str, Episode] = {}
        self._shown: list[Episode] = []
        """Episodes whose environment itself rewards may look at until the next rollout."""
        self._rollout = -1
        first = self._free[0]
        self.about = {"tools": first.tools, "answers": first.answers, "scores": first.scores}

    def __call__(self, item: Mapping[str, Any]) -> Any:
        """Return what the episode says to an item."""
        act, key = item["act"], item["key"]
        if item["rollout"] != self._rollout:
            self._rollout = item["rollout"]
            self._live.clear()
            for episode in self._shown:
                closed: Any = episode.close()  # type: ignore[func-returns-value]
                if inspect.isawaitable(closed):
                    run(_waited(closed), Draws(0)).result()
            self._free += self._shown
            self._shown.clear()
        if act == "start":
            self._live.pop(key, None)
            episode = self._free.pop() if self._free else self._make()
            self._live[key] = episode
        elif key not in self._live:
            return {"lost": True}
        steps, draws = self._steps(item, self._live[key]), Draws(item["seed"])
        value: Any = None
        try:
            while not inspect.isawaitable(value):
                with draws:
                    value = steps.send(value)
        except StopIteration as end:
            return end.value
        except BaseException:
            self._live.pop(key, None)  # it may be in any state
            raise
        later = run(self._rest(steps, value, key), draws)
        return later.result() if self._here else later

    async def _rest(self, steps: Generator[Any, Any, Any], value: Any, key: str) -> Any:
        try:
            while True:
                value = steps.send(await value if inspect.isawaitable(value) else value)
        except StopIteration as end:
            return end.value
        except BaseException:
            self._live.pop(key, None)
            raise

    def _steps(self, item: Mapping[str, Any], episode: Episode) -> Generator[Any, Any, Any]:
        """Return what the episode says to an item. What the environment returns is yielded, because it may be a
        coroutine, and its value is sent back.
        """
        found: dict[str, Any] = {}
        if item["act"] == "start":
            return {"said": _said((yield episode.start(item["row"], item["prompt"])))}
        if item["act"] == "reply":
            calls = [ToolCall(each["name"], each["arguments"]) for each in item["calls"]]
            reply = yield episode.reply(item["text"], calls)
            messages = [{**each, "role": str(each["role"]), "content": each["content"]} for each in reply.messages]
            found = {"messages": messages, "reward": _number(reply.reward), "done": bool(reply.done)}
            found["errors"] = int(reply.errors)
            if not reply.done:
                return found
        keep = item["keep"]
        found |= {"outcome": _number((yield episode.score())), "environment": None}
        if keep:
            found["environment"] = getattr(episode, "environment", episode)
        if keep and not self._here:
            found["environment"] = base64.b64encode(_pickled(found["environment"])).decode()
        del self._live[item["key"]]
        if keep and self._here:
            self._shown.append(episode)
        else:
            yield episode.close()  # type: ignore[func-returns-value]
            self._free.append(episode)
        return found


async def _waited(value: Any) -> Any:
    return await value


def _pickled(environment: Any) -> bytes:
    """Return an environment for rewards in other processes, without attributes that cannot leave this one."""
    import cloudpickle  # here: few runs need it

    def dumped(value: Any) -> bytes | None:
        try:
            return bytes(cloudpickle.dumps(value))
        except Exception:  # picklers raise anything
            return None

    whole = dumped(environment)
    if whole is not None:
        return whole
    rest = object.__new__(type(environment))
    rest.__dict__.update({name: value for name, value in vars(environment).items() if dumped(value) is not None})
    return bytes(cloudpickle.dumps(rest))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _said(value: Any) -> Any:
    """Return what an episode says at its start. Raises TypeError: it is neither text nor messages."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(each, (Mapping, str)) for each in value):
        return [each if isinstance(each, Mapping) else {"type": "text", "text": each} for each in value]
    raise TypeError(f"it begins with a {type(value).__name__} ({value!r:.60}), and not with text or messages")
