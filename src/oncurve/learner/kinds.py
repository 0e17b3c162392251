"""`[learner]`: where and how the policy is trained."""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.components import lacking
from oncurve.learner.critic import Critic, NoCritic
from oncurve.learner.policy import LocalLearner
from oncurve.learner.protocol import Learner
from oncurve.learner.settings import UNBUILT, LearnerSettings
from oncurve.losses import Objective, Regularizer
from oncurve.models import CausalModel


class LearnerConfig(LearnerSettings):
    """A learner in the training process (`kind = "local"`)."""

    @property
    def built_in(self) -> bool:
        """True, except for a class derived from this one."""
        return type(self) is LearnerConfig

    def build(
        self,
        model: CausalModel,
        objective: Objective,
        regularizer: Regularizer,
        critic: Critic | None = None,
        make: type[LocalLearner] = LocalLearner,
        **parts: Any,
    ) -> Learner:
        """Return a learner of the class `make` of the model, with the `critic`. Raises what those do.

        `parts` are the keyword arguments of `LocalLearner`: temperature, total_updates, reference, teacher,
        dtype, tokenizer.
        """
        return (critic or NoCritic()).build(make(self, model, objective, regularizer, **parts))


LEARNER_KINDS: dict[str, type[LearnerSettings]] = {"local": LearnerConfig}


def check_learner_settings(component: object) -> str | None:
    """Return what is wrong with a component as `[learner]`, or None."""
    if isinstance(component, LearnerSettings) and type(component).build is not LearnerSettings.build:
        return None
    return UNBUILT.format(type(component).__name__)


def check_learner(learner: Learner) -> Learner:
    """Return `learner`, if it has all that the trainer needs. Raises ConfigError: it lacks something."""
    names = [name for name in vars(Learner) if not name.startswith("_")]
    problem = lacking(learner, names, "learner")
    if problem is not None:
        raise ConfigError(f"learner.kind: {problem}")
    return learner
