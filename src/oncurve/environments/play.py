"""A worker's side: the episodes that are being played in this process, by their keys."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from oncurve.environments.episode import Episode, ToolCall

MOST_CALLS = 64
"""The most tool calls of one turn that are made; a turn with more gets an error for each of the others."""


class Player:
    """Plays the episodes that `make` makes: one call per item, `player({"act": "start", ...})`.

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
        self._rollout = -1
        self.about = {"tools": self._free[0].tools, "answers": self._free[0].answers}

    def __call__(self, item: Mapping[str, Any]) -> Any:
        """Return what the episode says to an item."""
        act, key = item["act"], item["key"]
        if item["rollout"] != self._rollout:
            self._rollout = item["rollout"]
            self._live.clear()
        if act == "start":
            self._live.pop(key, None)
            episode = self._free.pop() if self._free else self._make()
            self._live[key] = episode
        elif key not in self._live:
            return {"lost": True}
        episode = self._live[key]
        seed_all(item["seed"])
        try:
            if act == "start":
                return {"said": _said(episode.start(item["row"], item["prompt"]))}
            if act == "end":
                return self._ended(key, item["keep"])
            reply = episode.reply(item["text"], [ToolCall(each["name"], each["arguments"]) for each in item["calls"]])
            messages = [{**each, "role": str(each["role"]), "content": each["content"]} for each in reply.messages]
            found = {"messages": messages, "reward": _number(reply.reward), "done": bool(reply.done)}
            return {**found, "errors": int(reply.errors), **(self._ended(key, item["keep"]) if reply.done else {})}
        except BaseException:
            self._live.pop(key, None)  # it may be in any state
            raise

    def _ended(self, key: str, keep: bool) -> dict[str, Any]:
        episode = self._live[key]
        found: dict[str, Any] = {"outcome": _number(episode.score()), "environment": None}
        if keep:
            found["environment"] = getattr(episode, "environment", episode)
        if keep and not self._here:
            import cloudpickle  # here: few runs need it

            found["environment"] = base64.b64encode(cloudpickle.dumps(found["environment"])).decode()
        episode.close()
        self._free.append(self._live.pop(key))
        return found


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _said(value: Any) -> Any:
    """Return what an episode says at its start. Raises TypeError: it is neither text nor messages."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(each, (Mapping, str)) for each in value):
        return [each if isinstance(each, Mapping) else {"type": "text", "text": each} for each in value]
    raise TypeError(f"it begins with a {type(value).__name__} ({value!r:.60}), and not with text or messages")


def seed_all(seed: int) -> None:
    """Seed Python's and numpy's global generators."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
