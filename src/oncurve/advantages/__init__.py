"""Advantages: from rewards to one number per token, `(B, T)`. Pure functions and their settings.

An advantage is a `Component` called with a `TrainBatch`; `least_valid` is the number of valid completions that
a group needs for it.
"""

from oncurve.advantages.gae import GAEAdvantage, gae, token_rewards, whiten
from oncurve.advantages.group import GroupAdvantage, constant_groups, group_advantages
from oncurve.advantages.process import ProcessAdvantage, process_advantages
from oncurve.spec import Component

__all__ = [
    "ADVANTAGE_KINDS",
    "GAEAdvantage",
    "GroupAdvantage",
    "ProcessAdvantage",
    "constant_groups",
    "gae",
    "group_advantages",
    "process_advantages",
    "token_rewards",
    "whiten",
]

ADVANTAGE_KINDS: dict[str, type[Component]] = {
    "grpo": GroupAdvantage,
    "process": ProcessAdvantage,
    "gae": GAEAdvantage,
}
