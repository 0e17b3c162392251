"""Advantages: from rewards to one number per token, `(B, T)`. Pure functions and their settings.

An advantage is a `Component` called with a `TrainBatch`, whose `rewards (B,)` and `token_rewards (B, T)` hold all that
the completion is worth, the KL included where it is in the reward. It states two things of itself:

    least_valid   the number of valid completions that a group needs for it
    needs         what it reads besides: "siblings" (other completions of the prompt), "values" (a critic's), "steps"
                  (rewards of single steps); may be left out, for nothing of these
"""

from collections.abc import Set

from oncurve.advantages.gae import GAEAdvantage, gae, whiten
from oncurve.advantages.group import GroupAdvantage, constant_groups, group_advantages
from oncurve.advantages.process import ProcessAdvantage, process_advantages
from oncurve.spec import Component

__all__ = [
    "ADVANTAGE_KINDS",
    "ADVANTAGE_NEEDS",
    "GAEAdvantage",
    "GroupAdvantage",
    "ProcessAdvantage",
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
    """What an advantage states in `needs`, a subset of `ADVANTAGE_NEEDS`; nothing where it states nothing.

    Raises ValueError: it states something else.
    """
    stated: object = getattr(advantage, "needs", frozenset())
    if not isinstance(stated, Set) or not stated <= ADVANTAGE_NEEDS:
        known = ", ".join(f'"{name}"' for name in sorted(ADVANTAGE_NEEDS))
        raise ValueError(
            f"{type(advantage).__name__}.needs is {stated!r}; it must be a frozenset of what there is: {known}"
        )
    return frozenset(stated)
