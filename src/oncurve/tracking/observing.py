"""All trackers of a run, as one observer of its steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice

from torch import Tensor

from oncurve.tracking.follower import Follower
from oncurve.tracking.protocol import CompletionRow
from oncurve.tracking.settings import TrackingSettings
from oncurve.types import Group


class Tracking:
    """Follows a run's log into each of its trackers. Nothing here waits for one but `close`, and that has a limit."""

    def __init__(self, settings: TrackingSettings, followers: Sequence[Follower] = ()) -> None:
        self._settings, self._followers = settings, followers

    def recorded(self, step: int, groups: Sequence[Group], advantages: Sequence[Tensor | None]) -> None:
        """Say that the log has `step`. `advantages[g]` is `(n, T)` over the completions of `groups[g]`, or None."""
        every = self._settings.completions_every
        due = bool(self._followers) and every > 0 and step % every == 0
        table = completion_rows(groups, advantages, self._settings.completions_rows) if due else ()
        for follower in self._followers:
            follower.recorded(step, table)

    def news(self) -> list[str]:
        """Return the lines for the user since the last call."""
        lines: list[str] = []
        for follower in self._followers:
            while follower.news:
                lines.append(follower.news.pop(0))
        return lines

    def end(self) -> None:
        """Say that no further step comes. Returns at once."""
        for follower in self._followers:
            follower.end()

    def close(self, seconds: float | None = None) -> list[str]:
        """Wait until the trackers show all steps and are closed, all together `seconds` at most.

        seconds   None: `tracking.timeout_seconds`

        Returns the lines for the user.
        """
        self.end()
        until = time.monotonic() + (self._settings.timeout_seconds if seconds is None else seconds)
        lacking = [follower.wait(max(0.0, until - time.monotonic())) for follower in self._followers]
        return [*self.news(), *(line for line in lacking if line is not None)]


def completion_rows(
    groups: Sequence[Group], advantages: Sequence[Tensor | None], most: int
) -> tuple[CompletionRow, ...]:
    """Return the completions of the first groups, at most `most`; `advantages[g]` is `(n, T)`, or None."""
    rows = (
        _row(group, index, advantage)
        for group, advantage in zip(groups, advantages, strict=True)
        for index in range(len(group.completions))
    )
    return tuple(islice(rows, most))


def _row(group: Group, index: int, advantages: Tensor | None) -> CompletionRow:
    completion = group.completions[index]
    score = group.scores[index] if group.scores else None
    valid = score is not None and score.valid
    last = len(completion.ids) - 1
    return CompletionRow(
        group.prompt.text,
        completion.text,
        score.reward if score is not None and valid else None,
        float(advantages[index, last]) if advantages is not None and valid and last >= 0 else None,
        " ".join(f"{name}={value:g}" for name, value in (score.parts if score else {}).items() if value is not None),
        len(completion.ids),
        completion.ended,
    )
