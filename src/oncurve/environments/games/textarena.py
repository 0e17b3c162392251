"""TextArena's games for one player."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from oncurve.environments.games.game import TextGame, TextGameSettings

_RAW = "-raw"
"""Ends the name of a game without wrappers. The others show the whole history in each turn; a completion has it."""


class TextArena(TextGameSettings):
    """A game of TextArena for one player. Its reward is that of the whole game, and 0 for one that is left."""

    needs: ClassVar[tuple[str, ...]] = ("textarena", "textarena")

    id: str = Field(min_length=1)
    """The game's name: "GuessTheNumber-v0"."""

    @property
    def title(self) -> str:
        """The game's name."""
        return self.id

    def episode(self, base: Path) -> TextArenaGame:
        """Return the game."""
        return TextArenaGame(self, base)


class TextArenaGame(TextGame):
    """An episode of a game of TextArena."""

    def __init__(self, settings: TextArena, base: Path) -> None:
        super().__init__(settings, base)
        import textarena

        self.environment = textarena.make(settings.id.removesuffix(_RAW) + _RAW, **settings.settings)

    def begin(self, seed: int, row: Mapping[str, Any]) -> str:
        """Reset the game."""
        self._outcome = 0.0
        self.environment.reset(num_players=1, seed=seed)
        return self._news()

    def play(self, action: Any) -> tuple[str, None, bool]:
        """Make a move."""
        done, _ = self.environment.step(action)
        if done:
            rewards, _ = self.environment.close()
            self._outcome = float((rewards or {}).get(0, 0.0))
        return self._news(), None, bool(done)

    def _news(self) -> str:
        """Return what the game has said since, without what the policy has written."""
        player, messages = self.environment.get_observation()
        return "\n".join(text for sender, text, _ in messages if sender != player)

    def score(self) -> float | None:
        """Return the player's reward."""
        return self._outcome
