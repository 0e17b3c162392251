"""`[rollouts]`: of which steps a run's directory keeps the groups."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from oncurve.components import Component

_FORM = re.compile(r"(last|every) ([1-9]\d{0,8})")


def _checked(value: Any) -> Any:
    if value == "all" or (isinstance(value, str) and _FORM.fullmatch(value)):
        return value
    raise ValueError('expected "all", "last 20" or "every 10", with a number of steps from 1')


class RolloutsSettings(Component):
    """The groups of the steps that stay in `rollouts/` of the run's directory."""

    keep: Annotated[str, BeforeValidator(_checked)] = "all"
    """The steps whose groups stay: "all"; "last 20", the newest 20; "every 10", the first, every tenth and the newest.
    Metrics, resume and export do not depend on it."""

    tokens_every: Annotated[int, Field(ge=0)] = 12
    """Step 1 and every so many steps, if their groups stay, record each token's log-prob before and after the updates,
    its entropy and KL; 0: none does. Costs one forward pass or two, and changes no bit of the training."""

    def measures(self, step: int) -> bool:
        """Return whether the tokens of `step` are measured: its groups stay when the next step ends, too."""
        due = self.tokens_every > 0 and (step == 1 or step % self.tokens_every == 0)
        return due and self.keeps(step, step + 1)

    def keeps(self, step: int, newest: int) -> bool:
        """Return whether the groups of `step` stay after the step `newest`; those of later steps do."""
        match = _FORM.fullmatch(self.keep)
        if match is None or step >= newest:
            return True
        count = int(match[2])
        return step > newest - count if match[1] == "last" else step == 1 or step % count == 0
