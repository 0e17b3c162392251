"""TRL's batch sizes, which count completions and batches of them, as prompts per step and minibatches.

TRL samples `generation_batch_size` completions at a time, and cuts them into `steps_per_generation` batches of
`per_device_train_batch_size`; every `gradient_accumulation_steps` of these it makes an update, and goes through a
generation `num_iterations` times. A step of oncurve is one generation with all its updates. Where TRL gathers several
generations for one update, a step is all of them: no update lies between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Values


@dataclass(frozen=True)
class Sizes:
    """The sizes of a step.

    prompts        prompts per step
    minibatches    updates per pass over the step's completions
    passes         passes over them (`num_iterations`)
    generation     completions that TRL samples at a time (`generation_batch_size`)
    accumulated    batches of TRL's that one generation is cut into (`steps_per_generation`)
    """

    prompts: int
    minibatches: int
    passes: int
    generation: int
    accumulated: int

    @property
    def updates(self) -> int:
        """The updates per step, which TRL counts as steps."""
        return self.minibatches * self.passes

    def steps(self, updates: int) -> int:
        """Return the steps in which `updates` updates are made, rounded up."""
        return math.ceil(updates / self.updates)

    def of_rows(self, rows: int, epochs: float) -> int:
        """Return the steps of `epochs` epochs over so many rows, as TRL counts: without an incomplete generation.

        0: there are fewer rows than one generation has prompts.
        """
        return math.ceil(rows // self.prompts * epochs)


def sizes(values: Values) -> Sizes:
    """Return the sizes of a run. Raises ConfigError: they do not divide, or contradict each other."""
    rows, accumulation = values["per_device_train_batch_size"], values["gradient_accumulation_steps"]
    group, passes = values["num_generations"], values["num_iterations"]
    for name in SIZE_KEYS:
        given = values[name]
        if given is not None and (type(given) is not int or given < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, got {shown(given)}")
    generation = _generation(values, rows, accumulation)
    cut = generation // rows
    if group < 2:
        raise ConfigError(f"num_generations must be at least 2: an advantage is relative to its group, got {group}")
    if generation % group:
        raise ConfigError(
            f"a generation has {generation} completions (per_device_train_batch_size {rows} times steps_per_generation "
            f"{cut}), and these are no whole groups of num_generations={group}"
        )
    if cut % accumulation == 0:
        prompts, minibatches = generation // group, cut // accumulation
        if minibatches > prompts:
            raise ConfigError(
                f"an update here is of whole groups, and one of {rows * accumulation} completions "
                f"(per_device_train_batch_size times gradient_accumulation_steps) is less than a group of {group}; "
                "raise gradient_accumulation_steps"
            )
        return Sizes(prompts, minibatches, passes, generation, cut)
    if accumulation % cut:
        raise ConfigError(
            f"steps_per_generation={cut} and gradient_accumulation_steps={accumulation}: an update would end within a "
            "generation; make one a multiple of the other"
        )
    if passes > 1:
        raise ConfigError(
            f"num_iterations={passes} with gradient_accumulation_steps={accumulation} above steps_per_generation={cut}:"
            " TRL would count completions several times in one update; make them equal"
        )
    return Sizes(generation * (accumulation // cut) // group, 1, 1, generation, cut)


SIZE_KEYS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "num_iterations",
    "steps_per_generation",
    "generation_batch_size",
)


def _generation(values: Values, rows: int, accumulation: int) -> int:
    """Return `generation_batch_size`, given or as TRL makes it."""
    cut, generation = values["steps_per_generation"], values["generation_batch_size"]
    if cut is not None and generation is not None:
        raise ConfigError("generation_batch_size and steps_per_generation say the same; leave one of them out")
    if generation is None:
        return int(rows * (accumulation if cut is None else cut))
    if generation % rows:
        raise ConfigError(
            f"generation_batch_size={generation} must be a multiple of per_device_train_batch_size={rows}"
        )
    return int(generation)


def prompts_and_minibatches(value: Any, values: Values) -> dict[str, Any]:
    """Return the settings that all sizes make together. Raises ConfigError, with the places of the given sizes."""
    try:
        found = sizes(values)
    except ConfigError as error:
        given = {f"{each.place}: {name}": None for name, each in values.said.items() if name in SIZE_KEYS}
        raise ConfigError(f"{error} ({', '.join(given) or 'by TRL'})") from None
    made = {"data.prompts_per_step": found.prompts}
    return made if found.minibatches == 1 else {**made, "learner.minibatches": found.minibatches}


def sizes_if_possible(value: Any, values: Values) -> dict[str, Any]:
    """Return the same, or nothing where the sizes do not divide, which the first of their keys says."""
    try:
        return prompts_and_minibatches(value, values)
    except ConfigError:
        return {}


def updates_per_step(values: Values) -> int:
    """Return the updates per step; 1 where the sizes do not divide, which the first of their keys says."""
    try:
        return sizes(values).updates
    except ConfigError:
        return 1


def in_steps(value: Any, values: Values) -> int:
    """Return a number of updates, or a share of all (below 1), as steps. Raises ConfigError: a share of no number."""
    if value < 1:
        if value <= 0:
            raise ConfigError(f"expected a number above 0, got {shown(value)}")
        if values["max_steps"] <= 0:
            raise ConfigError(f"{shown(value)} is a share of max_steps, which is not given; write a number of steps")
        value = math.ceil(values["max_steps"] * value)
    if value % 1 != 0:
        raise ConfigError(f"expected a whole number, or a share below 1, got {shown(value)}")
    return math.ceil(int(value) / updates_per_step(values))
