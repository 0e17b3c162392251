"""skyrl-gym's protocol: `init(prompt)`, and `step(action)` with observations that are messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, JsonValue

from oncurve.base.imports import locate
from oncurve.environments.episode import Episode, Reply, ToolCall
from oncurve.environments.games.game import NamedGame


class SkyRLGym(NamedGame):
    """An environment of skyrl-gym, one for each row. Each turn has the reward of its step."""

    needs: ClassVar[tuple[str, ...]] = ("skyrl-gym", "skyrl_gym")

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Entries of `extras` that the columns of the row do not have: `{ max_turns = 3 }`."""

    env_config: dict[str, JsonValue] = Field(default_factory=dict)
    """What the environment gets as `env_config`."""

    def episode(self, base: Path) -> SkyRLGymEpisode:
        """Return an environment's episodes."""
        return SkyRLGymEpisode(self, base)


class SkyRLGymEpisode(Episode):
    """An episode of an environment of skyrl-gym."""

    def __init__(self, settings: SkyRLGym, base: Path) -> None:
        import omegaconf
        import skyrl_gym

        path, self._extras = settings.path, settings.settings
        self._make = partial(skyrl_gym.make, settings.id) if path is None else locate(path, base)
        self._config = omegaconf.OmegaConf.create(settings.env_config)

    def start(self, row: Mapping[str, Any], prompt: Any) -> Sequence[Mapping[str, Any]]:
        """Make the environment of a row, and return the messages that it adds. Raises ValueError: it changes others."""
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        self.environment = self._make(env_config=self._config, extras={**self._extras, **row})
        opened = self.environment.init([dict(each) for each in asked])[0]
        if opened[: len(asked)] != asked:
            raise ValueError("its init changes the messages of the prompt; write them so in the data")
        return list(opened[len(asked) :])

    def reply(self, text: str, calls: Sequence[ToolCall]) -> Reply:
        """Make a step. What the environment makes of the policy's text is not read: what was sampled stays."""
        found = self.environment.step(text)
        return Reply(found["observations"], float(found["reward"]), bool(found["done"]))

    def score(self) -> float | None:
        """Return 0: what the turns did not earn."""
        return 0.0

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()
