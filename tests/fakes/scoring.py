"""Groups to be scored, made from plain texts."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oncurve.types import Completion, Group, Prompt


def group(
    *texts: str,
    columns: Mapping[str, Any] | None = None,
    number: int = 0,
    messages: tuple[Mapping[str, Any], ...] | None = None,
) -> Group:
    """A group of completions with these texts; token ids are the characters' code points."""
    prompt = Prompt(number, f"prompt {number}", (1, 2), dict(columns or {"answer": "4"}), messages)
    completions = tuple(
        Completion(tuple(map(ord, text)) or (0,), text, (-1.0,) * max(1, len(text)), "eos", index, 0)
        for index, text in enumerate(texts)
    )
    return Group(prompt, completions)


def rewards_of(groups: Sequence[Group]) -> list[float | None]:
    """The reward of each completion, None for those that are not valid."""
    return [score.reward if score.valid else None for scored in groups for score in scored.scores]


def faults_of(groups: Sequence[Group]) -> list[str | None]:
    """The kind of each completion's fault."""
    return [score.fault and score.fault.partition(":")[0] for scored in groups for score in scored.scores]


def limit_beyond(call: Callable[[], Any]) -> float:
    """Return a limit in seconds that ends a call which hangs soon, and that others keep on a busy machine, too.

    It is 200 times what `call`, an ordinary one, takes now, after a first one that starts workers.
    """
    call()
    begun = time.monotonic()
    call()
    return max(0.5, 200 * (time.monotonic() - begun))
