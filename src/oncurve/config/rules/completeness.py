"""Settings that a run still lacks; the sentence of each is in `combinations.toml`."""

from __future__ import annotations

from collections.abc import Callable

from oncurve.advantages import TeacherSettings, reads_rewards, teacher_of
from oncurve.base.errors import refuse
from oncurve.config.rules.combinations import SENTENCES
from oncurve.config.sections import RunConfig

MISSING_WHERE: dict[str, Callable[[RunConfig], bool]] = {
    "model": lambda c: not c.model.path,
    "demonstrations": lambda c: c.demonstrates and not c.sft.present,
    "reward_model": lambda c: c.own_reward_model is not None and not c.own_reward_model.path,
    "verifier": lambda c: c.iterative.steps > 0 and c.eval.verifier is None,
    "teacher": lambda c: teacher_of(c.advantage) == TeacherSettings(),  # it would teach itself what it does already
    "rewards": lambda c: not c.rewards and reads_rewards(c.advantage),
}


def missing(config: RunConfig, model_given: bool = False) -> list[str]:
    """Return a line for each setting that a run cannot do without and that is not set: model, data, rewards, a teacher.

    `model_given`: the model was handed over as a module, so `model.path` may be empty.
    """
    names = [name for name, holds in MISSING_WHERE.items() if holds(config) and not (name == "model" and model_given)]
    of_data = [] if config.demonstrates else config.data.missing()
    return [*(SENTENCES["missing"][name] for name in names), *of_data, *config.environment.missing()]


def check_complete(config: RunConfig, model_given: bool = False) -> None:
    """Raises ConfigError with every line of `missing`."""
    refuse(missing(config, model_given))
