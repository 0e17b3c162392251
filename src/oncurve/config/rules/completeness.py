"""Settings that a run still lacks."""

from __future__ import annotations

from oncurve.advantages import TeacherSettings, reads_rewards, teacher_of
from oncurve.base.errors import refuse
from oncurve.config.sections import RunConfig


def missing(config: RunConfig, model_given: bool = False) -> list[str]:
    """Return a line for each setting that a run cannot do without and that is not set: model, data, rewards, a teacher.

    `model_given`: the model was handed over as a module, so `model.path` may be empty.
    """
    holes = []
    if not config.model.path and not model_given:
        holes.append("model.path: missing; name a folder or a hub id, like model.path=Qwen/Qwen2.5-0.5B-Instruct")
    if config.demonstrates and not config.sft.present:
        holes.append("sft.data: missing; name a file of demonstrations, like --data demonstrations.jsonl")
    holes += [] if config.demonstrates else config.data.missing()
    holes += config.environment.missing()
    if config.own_reward_model is not None and not config.own_reward_model.path:
        holes.append("reward_model.path: missing; name a reward model's folder or a hub id")
    if config.iterative.steps and config.eval.verifier is None:
        holes.append('eval.verifier: missing; name the reward that verifies samples, like [[rewards]] name = "truth"')
    if teacher_of(config.advantage) == TeacherSettings():  # the policy would teach itself what it does already
        holes.append(
            "advantage.teacher: missing; name a folder or a hub id, or set advantage.template, by which the policy "
            "teaches itself"
        )
    if not config.rewards and reads_rewards(config.advantage):
        holes.append(
            'rewards: missing; add a [[rewards]] table, like kind = "math" (on the command line: --reward math, or '
            "\"rewards=[{kind='math'}]\")"
        )
    return holes


def check_complete(config: RunConfig, model_given: bool = False) -> None:
    """Raises ConfigError with every line of `missing`."""
    refuse(missing(config, model_given))
