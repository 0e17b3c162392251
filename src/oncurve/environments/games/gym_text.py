"""Gymnasium's protocol with text: what gem and most small games of papers have.

class Game:
    def reset(self, seed=None): ...      # -> observation, info
    def step(self, action): ...          # -> observation, reward, terminated, truncated, info
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oncurve.base.imports import locate
from oncurve.environments.games.game import NamedGame, TextGame, TextGameSettings


class GymText(NamedGame, TextGameSettings):
    """A game with the protocol of Gymnasium. Each turn has the reward of its step."""

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Gymnasium, for a name that it knows."""
        return ("gymnasium", "gymnasium") if self.id is not None else ()

    def episode(self, base: Path) -> GymTextGame:
        """Return the game."""
        return GymTextGame(self, base)


class GymTextGame(TextGame):
    """An episode of `environment`, which was made by a class or by its name."""

    def __init__(self, settings: GymText, base: Path) -> None:
        super().__init__(settings, base)
        if settings.path is not None:
            self.environment = locate(settings.path, base)(**settings.settings)
        else:
            import gymnasium

            self.environment = gymnasium.make(str(settings.id), disable_env_checker=True, **settings.settings)

    def begin(self, seed: int, row: Mapping[str, Any]) -> Any:
        """Reset the game."""
        return self.environment.reset(seed=seed)[0]

    def play(self, action: Any) -> tuple[Any, float | None, bool]:
        """Make a step."""
        shown, reward, terminated, truncated, _ = self.environment.step(action)
        return shown, float(reward), bool(terminated or truncated)
