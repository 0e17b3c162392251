"""Games of other packages: each a kind of `[environment]`, and an extra of the package.

What they share: text in, text out; a reward for each turn, or for the game. Their classes are

GymText    Gymnasium's protocol with text: what gem and most small games of papers have
TextArena  TextArena's games for one player
SkyRLGym   skyrl-gym's protocol: `init(prompt)`, and `step(action)` with observations that are messages
OpenEnv    a server that speaks OpenEnv's protocol: JSON over a WebSocket

The game shows something, the policy writes, and so on until it is over. This module does not import torch, because
workers load it too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, JsonValue, model_validator

from oncurve.base.imports import locate
from oncurve.environments.episode import Episode, Reply, ToolCall
from oncurve.environments.settings import EnvironmentSettings

_LARGEST_BYTES = 16 << 20
"""The most bytes of a message of OpenEnv's server."""

_RAW = "-raw"
"""Ends the name of a game of TextArena without wrappers. The others show the whole history in each turn; a completion
has it."""


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
    """An episode of `environment`, which was made by a class or by its name.

    def reset(self, seed=None): ...      # -> observation, info
    def step(self, action): ...          # -> observation, reward, terminated, truncated, info
    """

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


class OpenEnv(TextGameSettings):
    """An environment on a server that speaks OpenEnv's protocol. Each turn has the reward of its step."""

    needs: ClassVar[tuple[str, ...]] = ("openenv", "websockets")

    url: str = Field(pattern=r"^(http|ws)s?://")
    """The server: "http://127.0.0.1:8000"."""

    action_field: str = "message"
    """The field of an action that holds the text of the policy's turn. For others `action` makes the whole action, a
    mapping."""

    observation_field: str | None = None
    """The field of an observation that the policy reads; none: all of it, as JSON. `observation` gets the same."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """What `reset` gets in addition to the seed and the row's columns."""

    exact: bool = False
    """The server gives the same replies to the same seed and actions."""

    def episode(self, base: Path) -> OpenEnvGame:
        """Return the environment's client."""
        return OpenEnvGame(self, base)


class OpenEnvGame(TextGame):
    """An episode in a session of its own: each connection is one, with its own environment.

    {"type": "reset", "data": {"seed": 7}}          {"type": "observation", "data": {"observation": {...},
    {"type": "step", "data": {"message": "[5]"}}         "reward": 0.0, "done": false}}
    """

    def __init__(self, settings: OpenEnv, base: Path) -> None:
        super().__init__(settings, base)
        self._settings, self._session = settings, ExitStack()

    def begin(self, seed: int, row: Mapping[str, Any]) -> Any:
        """Open a session, and reset its environment."""
        from websockets.sync.client import connect

        self.close()
        url = self._settings.url.rstrip("/").replace("http", "ws", 1) + "/ws"
        self._socket = self._session.enter_context(connect(url, max_size=_LARGEST_BYTES))
        return self._ask("reset", {**self._settings.settings, **row, "seed": seed})[0]

    def play(self, action: Any) -> tuple[Any, float | None, bool]:
        """Make a step."""
        return self._ask("step", action if isinstance(action, Mapping) else {self._settings.action_field: action})

    def _ask(self, what: str, data: Mapping[str, Any]) -> tuple[Any, float | None, bool]:
        self._socket.send(json.dumps({"type": what, "data": data}))
        answer = json.loads(self._socket.recv())
        found = answer.get("data", {})
        if answer.get("type") != "observation":
            raise RuntimeError(f"the server does not {what}: {found.get('message', answer)}")
        shown, field = found["observation"], self._settings.observation_field
        return shown if field is None else shown[field], found.get("reward"), bool(found.get("done"))

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def __del__(self) -> None:  # of an episode that is not played to its end
        self.close()
