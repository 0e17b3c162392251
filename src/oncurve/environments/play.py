"""A worker's side: the episodes that are being played in this process, by their keys."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oncurve.base.imports import locate
from oncurve.environments.episode import Episode, ToolCall

MOST_CALLS = 64
"""The most tool calls of one turn that are made; a turn with more gets an error for each of the others."""


class Player:
    """Plays the episodes that `make` makes: one call per item, `player({"act": "start", ...})`.

    act     start: row, prompt -> said
            reply: text, calls -> messages, reward, done, errors, and what `end` returns where it is done
            end: -> outcome, environment (pickled, if it is to be `kept`)
            drop: forget the episode
    key     of the episode; one that is not played here is `lost`
    rollout  its number; episodes of earlier ones are forgotten
    """

    def __init__(self, make: Callable[[], Episode]) -> None:
        self._make = make
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
        _seed(item["seed"])
        try:
            if act == "start":
                return {"said": episode.start(item["row"], item["prompt"])}
            if act == "reply":
                calls = [ToolCall(each["name"], each["arguments"]) for each in item["calls"]]
                reply = episode.reply(item["text"], calls)
                return {**asdict(reply), **(self._ended(key, item["keep"]) if reply.done else {})}
            return self._ended(key, item["keep"]) if act == "end" else self._live.pop(key) and None
        except BaseException:
            self._live.pop(key, None)  # it may be in any state
            raise

    def _ended(self, key: str, keep: bool) -> dict[str, Any]:
        episode = self._live[key]
        found: dict[str, Any] = {"outcome": episode.score(), "environment": None}
        if keep:
            import cloudpickle  # here: few runs need it

            kept = cloudpickle.dumps(getattr(episode, "environment", episode))
            found["environment"] = base64.b64encode(kept).decode()
        episode.close()
        self._free.append(self._live.pop(key))
        return found


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def served(episode: str, settings: Mapping[str, Any], base: str | None = None) -> Player:
    """Return the callable of a worker: `episode` is the path of a class that takes `settings`."""
    cls = locate(episode, None if base is None else Path(base))
    return Player(lambda: cls(**settings))
