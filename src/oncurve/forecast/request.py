"""What `oncurve plan` is given on its command line."""

from __future__ import annotations

from dataclasses import dataclass

from oncurve.base.errors import ConfigError
from oncurve.config import RunConfig, check_config
from oncurve.forecast.machines import Machine
from oncurve.forecast.shapes import ModelShape


@dataclass(frozen=True)
class Sizes:
    """A step's sizes as the command line says them; None: as the recipe, or by default."""

    prompts: int | None = None
    group_size: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class ForecastRequest:
    """Additions of the command line to a recipe: sizes, a `shape` for the recipe's model, a `machine` for this one."""

    sizes: Sizes = Sizes()
    shape: ModelShape | None = None
    machine: Machine | None = None


def with_flags(config: RunConfig, asked: ForecastRequest) -> RunConfig:
    """The configuration with the sizes of the command line. Raises ConfigError for one that cannot be."""
    sizes = {
        "--prompts": (asked.sizes.prompts, 10**6),
        "--group-size": (asked.sizes.group_size, 10**5),
        "--prompt-tokens": (asked.sizes.prompt_tokens, 10**7),
        "--completion-tokens": (asked.sizes.completion_tokens, 10**7),
    }
    for option, (value, most) in sizes.items():
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"{option} {value}: must be 1 at least, and {most:,} at most")
    data = {} if asked.sizes.prompts is None else {"prompts_per_step": asked.sizes.prompts}
    rollout = {} if asked.sizes.group_size is None else {"group_size": asked.sizes.group_size}
    if asked.sizes.completion_tokens is not None:
        rollout["max_new_tokens"] = asked.sizes.completion_tokens
    changed = {"data": config.data.model_copy(update=data), "rollout": config.rollout.model_copy(update=rollout)}
    sized = config.model_copy(update=changed)
    check_config(sized)
    return sized
