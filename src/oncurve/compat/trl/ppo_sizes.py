"""The batches of TRL's PPO as prompts per step and updates per pass, by what its loop does.

A batch is `per_device_train_batch_size * gradient_accumulation_steps` completions, one per prompt. It is cut into
`num_mini_batches`, each of these into pieces of at most `per_device_train_batch_size`, and an update is made after
every `gradient_accumulation_steps` pieces, which need not be those of one minibatch: with `num_mini_batches` up to
`gradient_accumulation_steps` a pass over the batch is one update.
"""

from __future__ import annotations

import math
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Values
from oncurve.compat.trl.sizes import Sizes

SIZE_KEYS = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_mini_batches", "num_ppo_epochs")


def ppo_sizes(values: Values) -> Sizes:
    """The sizes of a run. Raises ConfigError: they do not divide, as in TRL, or an update would end within a pass."""
    for name in SIZE_KEYS:
        if type(values[name]) is not int or values[name] < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, got {shown(values[name])}")
    rows, accumulated, minibatches, passes = (values[name] for name in SIZE_KEYS)
    batch = rows * accumulated
    if batch % minibatches:
        raise ConfigError(
            f"a batch of {batch} (per_device_train_batch_size times gradient_accumulation_steps) must be a multiple of "
            f"num_mini_batches={minibatches}"
        )
    if minibatches % accumulated and accumulated % minibatches:
        raise ConfigError(
            f"num_mini_batches={minibatches} and gradient_accumulation_steps={accumulated}: an update would end within "
            "a pass over the batch; make one a multiple of the other"
        )
    return Sizes(batch, max(1, minibatches // accumulated), passes, batch, accumulated)


def batches(value: Any, values: Values) -> dict[str, Any]:
    """The settings that all sizes make together. Raises ConfigError."""
    found = ppo_sizes(values)
    made = {"data.prompts_per_step": found.prompts, "rollout.group_size": 1}
    return made if found.minibatches == 1 else {**made, "learner.minibatches": found.minibatches}


def batches_if_possible(value: Any, values: Values) -> dict[str, Any]:
    """The same; none where they do not divide, which the first of the keys says."""
    try:
        return batches(value, values)
    except ConfigError:
        return {}


def updates_per_step(values: Values) -> int:
    """Updates per step; 1 where the sizes do not divide."""
    try:
        return ppo_sizes(values).updates
    except ConfigError:
        return 1


def steps_of(episodes: Any, values: Values) -> int:
    """The batches of so many completions, rounded up. Raises ConfigError: there are none."""
    if episodes < 1:
        raise ConfigError(f"expected a number of completions, at least 1, got {shown(episodes)}")
    return -(-int(episodes) // ppo_sizes(values).prompts)


def in_batches(value: Any, values: Values) -> int:
    """A number of batches, or a share of all (below 1). Raises ConfigError: a share of an unknown number."""
    if not value > 0 or (value >= 1 and value % 1 != 0):
        raise ConfigError(f"expected a whole number above 0, or a share below 1, got {shown(value)}")
    if value >= 1:
        return int(value)
    if values["total_episodes"] is None:
        raise ConfigError(
            f"{shown(value)} is a share of all batches; give total_episodes, or write a number of batches"
        )
    return math.ceil(steps_of(values["total_episodes"], values) * float(value))


def ppo_rows_known(values: Values, rows: int) -> dict[str, Any]:
    """The values of keys that depend on the number of training rows: epochs as completions and as steps."""
    made = dict[str, Any]()
    if values["total_episodes"] is None:
        made["total_episodes"] = int(values["num_train_epochs"] * rows)
    epoch = max(1, rows // ppo_sizes(values).prompts)
    for strategy, count in (("save_strategy", "save_steps"), ("eval_strategy", "eval_steps")):
        if values[strategy] == "epoch":
            made |= {strategy: "steps", count: epoch}
    return made
