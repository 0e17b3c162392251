"""One reward of a run: the items that its function takes, and the values that are rewards."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from oncurve.base.errors import DataError, RewardError, suggest
from oncurve.base.output import make_visible
from oncurve.processes.pool import WorkerReply
from oncurve.rewards.functions.callables import OFFERED, TRL_NAMES, VERL_TRUTH, Accepts
from oncurve.rewards.settings import RewardSettings, Runner
from oncurve.types import Completion, Group, Prompt

log = logging.getLogger("oncurve.rewards")
log.addFilter(make_visible)

LARGEST_REWARD = 1e300
"""Up to here no sum of 10^8 rewards leaves the range of a float."""


@dataclass(eq=False)
class RewardComponent:
    """A reward: its name, its settings, its runner, and the items for it."""

    name: str
    settings: RewardSettings
    runner: Runner
    _warned: set[str] = field(default_factory=set, init=False)

    @cached_property
    def accepts(self) -> Accepts:
        """The function's arguments. Waits until a worker has loaded it. Raises ConfigError: it cannot be loaded."""
        return Accepts.told(self.runner.about)

    @property
    def _offered(self) -> tuple[str, ...]:
        """The names that are no columns."""
        return TRL_NAMES if self.accepts.batch else OFFERED

    @property
    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns that the reward needs (`a or b`: one of them), and others that it takes where they are there."""
        offered = {*self._offered, "completion"}
        needs = [names for names in self.accepts.needs if not set(names) & offered]
        known = offered.union(*needs)
        takes = tuple(name for name in self.accepts.takes if name not in known)
        return tuple(" or ".join(names) for names in needs), (*takes, *(["all columns"] * self.accepts.everything))

    def complaint(self, row: Mapping[str, Any]) -> str | None:
        """Return why this reward cannot score completions to the prompt of `row`, a prompt's columns, or None if it
        can.
        """
        offered = self._offered
        for needed in self.accepts.needs:
            if not _has(row, needed) and not set(needed) & set(offered):
                columns = sorted(map(str, row))
                near = suggest(needed[0], [*columns, *offered])
                return (
                    f"reward {self.name} needs {' or '.join(map(repr, needed))}, and this row has no such column"
                    f"; its columns are: {', '.join(columns) or 'none'}; always offered: {', '.join(offered)}{near}; "
                    f"add it, or 'data.columns={{{needed[0]}=\"COLUMN\"}}' if all rows have it by another name"
                )
        wrong = self.settings.complaint(row)
        return None if wrong is None else f"reward {self.name}: {wrong}"

    def items(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Return the function's items, one per completion. Raises DataError: a column is missing in a row."""
        return [self._item(group.prompt, completion) for group in groups for completion in group.completions]

    def _item(self, prompt: Prompt, completion: Completion) -> dict[str, Any]:
        available = {
            **prompt.columns,
            "completion": completion.text,
            "prompt": prompt.text,
            "completion_ids": list(completion.ids),
            "episode": _episode(completion),
        }
        for needed in self.accepts.needs:
            if not set(needed) & available.keys():
                raise DataError(
                    f"reward {self.name} needs {' or '.join(map(repr, needed))}, but row {prompt.id} of the data has "
                    f"only: {', '.join(map(str, prompt.columns)) or 'no columns'}"
                )
        return {name: value for name, value in available.items() if self.accepts.wants(name)}

    def warn_once(self, message: str, argument: object) -> None:
        """Log a warning, once in a run."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, self.name, argument)

    def batch_item(self, groups: Sequence[Group], step: int) -> dict[str, Any]:
        """Return the item of a batch function: one for all completions of `groups`."""
        accepts = self.accepts
        pairs = [(group, completion) for group in groups for completion in group.completions]
        rows = [group.prompt.columns for group, _ in pairs]
        names = dict.fromkeys(name for row in rows for name in row if accepts.wants(name) and name not in TRL_NAMES)
        prompts, completions = zip(*(_as_trl(group.prompt, completion) for group, completion in pairs), strict=True)
        return {
            "prompts": list(prompts),
            "completions": list(completions),
            "completion_ids": [list(c.ids) for _, c in pairs] if "completion_ids" in accepts.takes else None,
            "environments": [c.environment for _, c in pairs] if "environments" in accepts.takes else None,
            "columns": {name: [row.get(name) for row in rows] for name in names},
            "step": step,
        }

    def values(self, rewards: Any, expected: int) -> list[WorkerReply]:
        """Return the replies in the `rewards` that a batch function returned for `expected` completions.

        Raises RewardError for a list of the wrong length.
        """
        if hasattr(rewards, "tolist"):
            rewards = rewards.tolist()
        if not isinstance(rewards, (list, tuple)):
            message = f"it returned {_described(rewards)} instead of a list of {expected} rewards"
            return [WorkerReply(None, "type", message)] * expected
        if len(rewards) != expected:
            raise RewardError(
                f"reward {self.name} returned {len(rewards)} values for {expected} completions; a list must have "
                "one value per completion, in order (None where the reward does not apply)"
            )
        return [checked(WorkerReply(value)) for value in rewards]


@dataclass(frozen=True)
class Stepwise:
    """A reward for a completion and for its steps.

    value     of the completion; None: does not apply
    ends      offsets in its text just after each step
    rewards   of the steps
    """

    value: float | None
    ends: tuple[int, ...]
    rewards: tuple[float, ...]


def as_stepwise(given: Mapping[str, Any]) -> Stepwise | float | None:
    """Return `{"reward", "step_ends", "step_rewards"}` as a `Stepwise`; as a plain value where no step applies (None).

    Where the reward is None it is the mean of the steps.

    Raises TypeError, ValueError: as `as_value`, and for ends that are no whole numbers or another number than rewards.
    """
    ends, rewards = list(given["step_ends"]), [as_value(reward) for reward in given["step_rewards"]]
    if len(ends) != len(rewards) or not all(type(end) is int for end in ends):
        raise TypeError(f"it returned the step ends {ends!r:.60} for {len(rewards)} step rewards")
    scored = [(end, reward) for end, reward in zip(ends, rewards, strict=True) if reward is not None]
    value = as_value(given["reward"])
    if not scored:
        return value
    if value is None:
        value = math.fsum(reward / len(scored) for _, reward in scored)
    return Stepwise(value, tuple(end for end, _ in scored), tuple(reward for _, reward in scored))


def as_value(value: Any) -> float | None:
    """Return a reward as a float; None stays None. bool, int, float, and scalars of numpy and torch are rewards.

    Raises TypeError for anything else, ValueError for NaN, the infinities, and numbers beyond ±`LARGEST_REWARD`.
    """
    if value is None:
        return None
    if not isinstance(value, (bool, int, float)) and hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"it returned {_described(value)} instead of a number or None")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"it returned {number}")
    if abs(number) > LARGEST_REWARD:
        raise ValueError(f"it returned {number:g}, and a reward lies between ±{LARGEST_REWARD:g}: larger ones overflow")
    return number


def checked(reply: WorkerReply) -> WorkerReply:
    """Return the reply with its value as a float, None or `Stepwise`; a fault where the value is none of these."""
    if reply.fault is not None:
        return reply
    try:
        stepwise = isinstance(reply.value, Mapping) and "step_ends" in reply.value
        return WorkerReply(as_stepwise(reply.value) if stepwise else as_value(reply.value))
    except TypeError as error:
        return WorkerReply(None, "type", str(error))
    except ValueError as error:
        return WorkerReply(None, "not_finite", str(error))


def within(reply: WorkerReply, length: int) -> WorkerReply:
    """Return the reply; a fault where its steps end outside a text of `length` characters, or not in order."""
    ends = reply.value.ends if isinstance(reply.value, Stepwise) else ()
    if all(0 < end <= length for end in ends) and list(ends) == sorted(set(ends)):
        return reply
    return WorkerReply(None, "type", f"its steps end at {list(ends)!r:.60} in a completion of {length} characters")


def _has(row: Mapping[str, Any], needed: Sequence[str]) -> bool:
    """Return whether a row has one of the columns; verl's `reward_model` is one where it holds a `ground_truth`."""
    there = {name for name in needed if name in row}
    if tuple(needed) == VERL_TRUTH and "reward_model" in there:
        stored = row["reward_model"]
        return bool(there - {"reward_model"}) or (isinstance(stored, Mapping) and "ground_truth" in stored)
    return bool(there)


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__} ({value!r:.60})"


def _episode(completion: Completion) -> dict[str, Any]:
    """Return an episode as a reward function sees it: `outcome`, `ended`, and role, text and reward of each turn."""
    turns = [{"role": turn.role, "text": turn.text, "reward": turn.reward} for turn in completion.turns]
    return {"outcome": completion.outcome, "ended": completion.ended, "turns": turns}


def _as_trl(prompt: Prompt, completion: Completion) -> tuple[Any, Any]:
    """Return prompt and completion as TRL has them: as messages where the prompt was a chat."""
    if prompt.messages is None:
        return prompt.text, completion.text
    written = completion.messages or ({"role": "assistant", "content": completion.text},)
    return [dict(message) for message in prompt.messages], [dict(message) for message in written]
