"""One reward of a run: the items its function takes, and which values are rewards."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from oncurve.errors import DataError, RewardError
from oncurve.output import make_visible
from oncurve.rewards.callables import OFFERED, TRL_NAMES, VERL_TRUTH
from oncurve.rewards.settings import Accepts, RewardSettings, Runner
from oncurve.spec import suggest
from oncurve.types import Completion, Group, Prompt
from oncurve.workers import Reply

__all__ = [
    "LARGEST_REWARD",
    "Part",
    "Stepwise",
    "as_stepwise",
    "as_value",
    "checked",
    "completion_count",
    "within",
]

log = logging.getLogger("oncurve.rewards")
log.addFilter(make_visible)

LARGEST_REWARD = 1e300
"""Rewards are sums and means of at most 10^8 others: up to here no such sum leaves the range of a float."""


class Part:
    """A reward: its name, its settings, its runner, and how it is asked."""

    def __init__(self, name: str, settings: RewardSettings, runner: Runner) -> None:
        self.name = name
        self.settings = settings
        self.runner = runner
        self._told: set[str] = set()

    @cached_property
    def accepts(self) -> Accepts:
        """What the function takes. Waits until its worker has loaded it; raises ConfigError when it cannot be."""
        return Accepts.model_validate(self.runner.about)

    def complaint(self, row: Mapping[str, Any]) -> str | None:
        """Why this reward cannot score completions to the prompt of `row`, a prompt's columns; None: it can."""
        offered = TRL_NAMES if self.accepts.batch else OFFERED
        for needed in self.accepts.needs:
            if not _has(row, needed) and not set(needed) & set(offered):
                columns = sorted(map(str, row))
                near = suggest(needed[0], [*columns, *offered])
                return (
                    f"reward {self.name} needs {' or '.join(map(repr, needed))}, and there is no such column"
                    f"; the columns are: {', '.join(columns) or 'none'}; offered besides: {', '.join(offered)}{near}"
                )
        wrong = self.settings.complaint(row)
        return None if wrong is None else f"reward {self.name}: {wrong}"

    def items(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """What the function is given, one item a completion. Raises DataError: a column is missing in a row."""
        accepts = self.accepts
        return [self._item(group.prompt, completion, accepts) for group, completion in _completions(groups)]

    def _item(self, prompt: Prompt, completion: Completion, accepts: Accepts) -> dict[str, Any]:
        available = {
            **prompt.columns,
            "completion": completion.text,
            "prompt": prompt.text,
            "completion_ids": list(completion.ids),
        }
        for needed in accepts.needs:
            if not set(needed) & available.keys():
                raise DataError(
                    f"reward {self.name} needs {' or '.join(map(repr, needed))}, but row {prompt.id} of the data has "
                    f"only: {', '.join(map(str, prompt.columns)) or 'no columns'}"
                )
        if accepts.everything:
            return available
        wanted = {*accepts.takes, *(name for needed in accepts.needs for name in needed)}
        return {name: value for name, value in available.items() if name in wanted}

    def tell(self, message: str, said: object) -> None:
        """A warning, once in a run."""
        if message not in self._told:
            self._told.add(message)
            log.warning(message, self.name, said)

    def lists(self, groups: Sequence[Group], step: int) -> dict[str, Any]:
        """What a batch function is given: one call for all completions of `groups`."""
        accepts = self.accepts
        pairs = list(_completions(groups))
        rows = [group.prompt.columns for group, _ in pairs]
        wanted = {*accepts.takes, *(name for needed in accepts.needs for name in needed)} - set(TRL_NAMES)
        names = dict.fromkeys(name for row in rows for name in row if accepts.everything or name in wanted)
        prompts, completions = zip(*(_as_trl(group.prompt, completion) for group, completion in pairs), strict=True)
        return {
            "prompts": list(prompts),
            "completions": list(completions),
            "completion_ids": [list(c.ids) for _, c in pairs] if "completion_ids" in accepts.takes else None,
            "columns": {name: [row.get(name) for row in rows] for name in names if name not in TRL_NAMES},
            "step": step,
        }

    def values(self, rewards: Any, expected: int) -> list[Reply]:
        """The replies in what a batch function returned for `expected` completions.

        Raises RewardError for a list of the wrong length.
        """
        if not isinstance(rewards, (list, tuple)):
            rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards
        if not isinstance(rewards, (list, tuple)):
            message = f"it returned {_described(rewards)} instead of a list of {expected} rewards"
            return [Reply(None, "type", message)] * expected
        if len(rewards) != expected:
            raise RewardError(
                f"reward {self.name} returned {len(rewards)} values for {expected} completions; a list must have "
                "one value a completion, in order (None where the reward does not apply)"
            )
        return [checked(Reply(value)) for value in rewards]


@dataclass(frozen=True)
class Stepwise:
    """What a reward says of a completion whose steps it has judged.

    value     of the completion; None: does not apply
    ends      offsets in its text just behind each step
    rewards   of the steps
    """

    value: float | None
    ends: tuple[int, ...]
    rewards: tuple[float, ...]


def as_stepwise(said: Mapping[str, Any]) -> Stepwise | float | None:
    """Of `{"reward", "step_ends", "step_rewards"}`. A step that is None does not apply; a plain value without any step.

    Without a reward of its own the completion is worth the mean of its steps.

    Raises TypeError, ValueError: as `as_value`, and for ends that are no whole numbers or another number than rewards.
    """
    ends, rewards = list(said["step_ends"]), [as_value(reward) for reward in said["step_rewards"]]
    if len(ends) != len(rewards) or not all(type(end) is int for end in ends):
        raise TypeError(f"it returned the step ends {ends!r:.60} for {len(rewards)} step rewards")
    judged = [(end, reward) for end, reward in zip(ends, rewards, strict=True) if reward is not None]
    value = as_value(said["reward"])
    if not judged:
        return value
    if value is None:
        value = math.fsum(reward / len(judged) for _, reward in judged)
    return Stepwise(value, tuple(end for end, _ in judged), tuple(reward for _, reward in judged))


def as_value(value: Any) -> float | None:
    """A reward as a float; None stays None. bool, int, float, and scalars of numpy and torch are rewards.

    Raises TypeError for anything else, ValueError for NaN, the infinities, and what is beyond ±`LARGEST_REWARD`.
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


def checked(reply: Reply) -> Reply:
    """The reply with its value as a float, None or `Stepwise`, or with the fault that the value is."""
    if reply.fault is not None:
        return reply
    try:
        stepwise = isinstance(reply.value, Mapping) and "step_ends" in reply.value
        return Reply(as_stepwise(reply.value) if stepwise else as_value(reply.value))
    except TypeError as error:
        return Reply(None, "type", str(error))
    except ValueError as error:
        return Reply(None, "not_finite", str(error))


def within(reply: Reply, length: int) -> Reply:
    """The reply, or the fault that its steps are where they end outside of a text of `length` characters."""
    ends = reply.value.ends if isinstance(reply.value, Stepwise) else ()
    if all(0 < end <= length for end in ends) and list(ends) == sorted(set(ends)):
        return reply
    return Reply(None, "type", f"it said that steps end at {list(ends)!r:.60} in a completion of {length} characters")


def _has(row: Mapping[str, Any], needed: Sequence[str]) -> bool:
    """Whether a row has one of the columns; verl's `reward_model` is one where it holds a `ground_truth`."""
    there = {name for name in needed if name in row}
    if tuple(needed) == VERL_TRUTH and "reward_model" in there:
        stored = row["reward_model"]
        return bool(there - {"reward_model"}) or (isinstance(stored, Mapping) and "ground_truth" in stored)
    return bool(there)


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__} ({value!r:.60})"


def _as_trl(prompt: Prompt, completion: Completion) -> tuple[Any, Any]:
    """Conversational where the prompt was a chat, as TRL does it."""
    if prompt.messages is None:
        return prompt.text, completion.text
    return [dict(message) for message in prompt.messages], [{"role": "assistant", "content": completion.text}]


def _completions(groups: Sequence[Group]) -> Iterator[tuple[Group, Completion]]:
    return ((group, completion) for group in groups for completion in group.completions)


def completion_count(groups: Sequence[Group]) -> int:
    """How many completions the groups have together."""
    return sum(len(group.completions) for group in groups)
