"""Advantages: from rewards to one number per token, `(B, T)`. Pure functions and their settings.

An advantage is a `Component` called with a `TrainBatch`, whose `rewards (B,)` and `token_rewards (B, T)` hold the
whole reward, the KL included where it is part of the reward. It states of itself:

    min_valid_completions   the number of valid completions that a group needs for it
    needs                   what else it reads: "siblings" (other completions of the prompt), "values" (a critic's),
                            "steps" (rewards of single steps), "components" (the single rewards of `[[rewards]]`),
                            "nonnegative" (rewards of 0 or more), "teacher" (a teacher's log-probs); "demonstrations"
                            (completions of `[sft]`, not sampled ones). Left out: none of these
    teacher, template       with "teacher": the model (None: the policy itself), and the prompt that it reads, from
                            columns (None: the policy's). Left out: None
    reads_rewards           whether it reads rewards. Left out: True
    describe()              its `Equation`. Left out: `config explain` names the class
"""

from dataclasses import dataclass

from oncurve.advantages.demonstration import DemonstrationAdvantage
from oncurve.advantages.distill import Distill, distillation_advantages
from oncurve.advantages.gae import GAEAdvantage, gae
from oncurve.advantages.gdpo import GDPOAdvantage
from oncurve.advantages.group import GroupAdvantage, OutcomeAdvantage, group_advantages
from oncurve.advantages.maxrl import MaxRLAdvantage, maxrl_advantages
from oncurve.advantages.opo import OPOAdvantage, opo_advantages
from oncurve.advantages.passk import PassKAdvantage, passk_advantages
from oncurve.advantages.process import ProcessAdvantage, process_advantages
from oncurve.advantages.reinforce_pp import ReinforcePPAdvantage, ReinforcePPBaselineAdvantage
from oncurve.advantages.rloo import RLOOAdvantage, rloo_advantages
from oncurve.components import Component, lacking, misstated, nested_in, stated, uncallable, unflagged

ADVANTAGE_NEEDS = frozenset({"siblings", "values", "steps", "components", "nonnegative", "teacher", "demonstrations"})
"""All that an advantage can need."""

ADVANTAGE_KINDS: dict[str, type[Component]] = {
    "grpo": GroupAdvantage,
    "process": ProcessAdvantage,
    "gae": GAEAdvantage,
    "rloo": RLOOAdvantage,
    "reinforce_pp": ReinforcePPAdvantage,
    "reinforce_pp_baseline": ReinforcePPBaselineAdvantage,
    "gdpo": GDPOAdvantage,
    "maxrl": MaxRLAdvantage,
    "opo": OPOAdvantage,
    "passk": PassKAdvantage,
    "distill": Distill,
    "demonstration": DemonstrationAdvantage,
}


@dataclass(frozen=True)
class TeacherSettings:
    """The teacher of an advantage that needs one.

    path       of a model; None: the policy itself, as it is in each step
    template   the prompt that it reads, from columns; None: the policy's own
    """

    path: str | None = None
    template: str | None = None


def teacher_of(advantage: object) -> TeacherSettings | None:
    """Return the teacher that an advantage states; None where it needs none."""
    if "teacher" not in needs_of(advantage):
        return None
    return TeacherSettings(getattr(advantage, "teacher", None), getattr(advantage, "template", None))


def reads_rewards(advantage: object) -> bool:
    """Return whether an advantage reads rewards; True where it states nothing."""
    return bool(stated(advantage, "reads_rewards", True))


def needs_of(advantage: object) -> frozenset[str]:
    """Return an advantage's `needs`; empty where it states none."""
    found: frozenset[str] = getattr(advantage, "needs", frozenset())
    return found


def check_advantage(advantage: object) -> str | None:
    """Return what is wrong with an advantage, or with what it states of itself, or None."""
    lacks = lacking(advantage, ("__call__", "min_valid_completions"), "advantage")
    if lacks is not None:
        return lacks
    name = type(advantage).__name__
    least: object = getattr(advantage, "min_valid_completions", None)
    if isinstance(least, bool) or not isinstance(least, int) or least < 1:
        return (
            f"{name}.min_valid_completions is {least!r}; it must be the number of valid completions that a group "
            "needs, 1 or more"
        )
    problems = [
        uncallable(advantage, "batch"),
        misstated(f"{name}.needs", needs_of(advantage), ADVANTAGE_NEEDS),
        unflagged(advantage, ("reads_rewards",)),
        *(check_advantage(part) for part in nested_in(advantage)),
    ]
    return next((problem for problem in problems if problem is not None), None)
