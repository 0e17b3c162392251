"""Advantages: from rewards to one number per token, `(B, T)`. Pure functions and their settings.

An advantage is a `Component` called with a `TrainBatch`, whose `rewards (B,)` and `token_rewards (B, T)` hold all that
the completion is worth, the KL included where it is in the reward. It states two things of itself:

    least_valid   the number of valid completions that a group needs for it
    needs         what it reads besides: "siblings" (other completions of the prompt), "values" (a critic's), "steps"
                  (rewards of single steps); may be left out, for nothing of these
"""

from oncurve.advantages.gae import GAEAdvantage, gae, whiten
from oncurve.advantages.group import GroupAdvantage, constant_groups, group_advantages
from oncurve.advantages.process import ProcessAdvantage, process_advantages
from oncurve.spec import Component, misstated

__all__ = [
    "ADVANTAGE_KINDS",
    "ADVANTAGE_NEEDS",
    "GAEAdvantage",
    "GroupAdvantage",
    "ProcessAdvantage",
    "check_advantage",
    "constant_groups",
    "gae",
    "group_advantages",
    "needs_of",
    "process_advantages",
    "whiten",
]

ADVANTAGE_NEEDS = frozenset({"siblings", "values", "steps"})
"""All that an advantage can need."""

ADVANTAGE_KINDS: dict[str, type[Component]] = {
    "grpo": GroupAdvantage,
    "process": ProcessAdvantage,
    "gae": GAEAdvantage,
}


def needs_of(advantage: object) -> frozenset[str]:
    """What an advantage states in `needs`; nothing where it states nothing."""
    stated: frozenset[str] = getattr(advantage, "needs", frozenset())
    return stated


def check_advantage(advantage: object) -> str | None:
    """What is wrong with what an advantage states of itself; None: nothing."""
    name = type(advantage).__name__
    least: object = getattr(advantage, "least_valid", None)
    if isinstance(least, bool) or not isinstance(least, int) or least < 1:
        return (
            f"{name}.least_valid is {least!r}; it must be the number of valid completions that a group needs, 1 or more"
        )
    return misstated(f"{name}.needs", needs_of(advantage), ADVANTAGE_NEEDS)
