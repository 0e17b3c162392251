"""The protocol of environments. They run in workers, speak text and messages, and never see a token.

Nothing here, nor any module that a worker imports, imports torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class ToolCall:
    """A call that the policy has written: `ToolCall("add", {"x": 1, "y": 2})`."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """The reply of an environment to a turn of the policy.

    messages   context for the next turn: `[{"role": "user", "content": ...}]`, or tool results
    reward     of this turn; None: none
    done       the episode is over, and its messages are not read any more
    errors     the tool calls of this turn that failed
    """

    messages: Sequence[Mapping[str, Any]] = ()
    reward: float | None = None
    done: bool = False
    errors: int = 0


class Episode:
    """An episode of an environment. An object plays many episodes, one after another, each begun by `start`.

    Python's and numpy's global generators are seeded before every call, by the prompt, the sample and the turn; all
    samples of a group begin with the same seed. An exception leaves the episode out of training. Each function may be
    a coroutine: those of all episodes of a worker run next to each other.
    """

    tools: Any = ()
    """JSON schemas of the tools that the policy is shown, `[{"type": "function", "function": {...}}]`; or such lists by
    the value of the column `environment`."""

    answers: ClassVar[bool] = False
    """Whether a turn without a tool call is the policy's answer, which ends the episode."""

    scores: bool = True
    """Whether it may give rewards."""

    def start(self, row: Mapping[str, Any], prompt: Any) -> str | Sequence[Mapping[str, Any]] | None:
        """Begin with the columns of a row and its `prompt`, a text or messages.

        Returns what is added to the prompt: text at the end of the last user message, or whole messages.
        """
        return None

    def reply(self, text: str, calls: Sequence[ToolCall]) -> Reply:
        """Return what is said to a turn: its `text`, and the tool calls in it."""
        raise NotImplementedError

    def score(self) -> float | None:
        """Return the reward of the whole episode, or None if it gives none. Called once, at its end."""
        return None

    def close(self) -> None:
        """Release what the episode holds. `start` may follow."""
