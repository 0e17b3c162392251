"""A client of OpenEnv's protocol: JSON over a WebSocket. Each connection is a session with its own environment.

{"type": "reset", "data": {"seed": 7}}          {"type": "observation", "data": {"observation": {...},
{"type": "step", "data": {"message": "[5]"}}         "reward": 0.0, "done": false}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from oncurve.environments.games.game import TextGame, TextGameSettings

_LARGEST_BYTES = 16 << 20
"""The most bytes of a server's message."""


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
    """An episode in a session of its own."""

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
