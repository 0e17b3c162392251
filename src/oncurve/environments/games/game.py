"""The common part of games: the game shows something, the policy writes, and so on until it is over.

Neither this module nor those next to it import torch, because workers load them too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, JsonValue, model_validator

from oncurve.base.imports import locate
from oncurve.environments.episode import Episode, Reply, ToolCall
from oncurve.environments.settings import EnvironmentSettings


class GameSettings(EnvironmentSettings):
    """The fields of every game. A row's column `seed` is the game's seed; without one, all samples of a prompt play the
    same game, and each step another.
    """

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments with which the game is made."""


class NamedGame(GameSettings):
    """A game of a class of its own, or of a name in a package of games."""

    path: str | None = None
    """The class, or a function that makes the game: "file.py:Name" (relative to the recipe) or "module:Name"."""

    id: str | None = None
    """In its place the name under which the package knows it: "FrozenLake-v1" of Gymnasium, "gsm8k_multi_turn" of
    skyrl-gym."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.path is None) == (self.id is None):
            raise ValueError('give a class (path = "game.py:Game"), or a name that the package of games knows (id)')
        return self

    @property
    def title(self) -> str:
        """The game's name."""
        return self.id or str(self.path).rpartition(":")[2]


class TextGameSettings(GameSettings):
    """A game that shows text, and takes text."""

    observation: str | None = None
    """A function of yours ("file.py:name") that makes the text that the policy reads of what the game shows."""

    action: str | None = None
    """A function of yours that makes what the game gets of the text that the policy writes."""


class TextGame(Episode):
    """An episode of a game that shows text. `base` is the folder of the functions that change what is shown, and what
    is written.
    """

    def __init__(self, settings: TextGameSettings, base: Path) -> None:
        self._observation = str if settings.observation is None else locate(settings.observation, base)
        self._action = str if settings.action is None else locate(settings.action, base)

    def begin(self, seed: int, row: Mapping[str, Any]) -> Any:
        """Begin a game, and return what it shows."""
        raise NotImplementedError

    def play(self, action: Any) -> tuple[Any, float | None, bool]:
        """Return what the game shows to an action, the reward of this turn if there is one, and whether it is over."""
        raise NotImplementedError

    def start(self, row: Mapping[str, Any], prompt: Any) -> str:
        """Begin the game of the row's `seed`."""
        seed = row.get("seed")
        return str(self._observation(self.begin(random.getrandbits(30) if seed is None else int(seed), row)))

    def reply(self, text: str, calls: Sequence[ToolCall]) -> Reply:
        """Return what the game shows to a turn."""
        shown, reward, done = self.play(self._action(text))
        messages = [] if done else [{"role": "user", "content": str(self._observation(shown))}]
        return Reply(messages, reward, done)

    def score(self) -> float | None:
        """Return 0: what the turns did not earn. So is the reward of a game that is left before its end."""
        return 0.0
