"""The rewards of a run together: a `Score` for every completion, and what becomes of faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from oncurve.errors import ConfigError, RewardError, TrainingError
from oncurve.rewards import REWARD_KINDS
from oncurve.rewards.parts import Part
from oncurve.rewards.python import Python
from oncurve.rewards.settings import InProcess, RewardSettings, kind_meant
from oncurve.spec import build
from oncurve.types import Group, Score
from oncurve.workers import Reply

__all__ = ["RewardSet"]


class RewardSet:
    """Scores groups: reward = Σ weight * part over the parts that apply.

    A part that is None does not apply. A completion with no applicable part, or with a fault where `on_error` is
    "mask", is not valid: reward 0, out of statistics and loss. `Score.fault` is `"<kind>: <part>: <message>"`.

    parts            the rewards, in the order of the settings
    announcements    what the plan has to say about them
    fault_counts     faults of the last `score` by kind: exception, exit, memory, timeout, died, type, not_finite, none
    metrics          means of what TRL functions logged (`log_metric`) in the last `score`, by "part/name"; what they
                     noted of each completion (`log_extra`) is in its `Score.extras`
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.announcements: list[str] = [
            f"reward {part.name} runs in this process and cannot be killed: {part.runner.reason}"
            for part in self.parts
            if isinstance(part.runner, InProcess) and part.runner.reason is not None
        ]
        self.fault_counts: Counter[str] = Counter()
        self.metrics: dict[str, float] = {}

    @classmethod
    def build(
        cls,
        settings: Sequence[Mapping[str, Any] | RewardSettings | Callable[..., Any]],
        columns: Collection[str] | None = None,
        base: Path | None = None,
    ) -> RewardSet:
        """The rewards of tables, components or plain functions; starts their workers and waits until they have loaded.

        columns   the data's column names: a reward that needs another one is refused now
        base      the folder against which paths are resolved

        Raises ConfigError: no reward, an impossible setting, a function that cannot be loaded. DataError: a column.
        """
        if not settings:
            raise ConfigError("rewards: a run needs at least one; add a [[rewards]] table, such as kind = 'math'")
        chosen = [_component(item, f"rewards.{index}", base) for index, item in enumerate(settings)]
        with ExitStack() as undo:
            parts = []
            for name, component in zip(_names(chosen), chosen, strict=True):
                parts.append(Part(name, component, component.start(base)))
                undo.callback(parts[-1].runner.close)
            for part in parts:
                try:
                    accepts = part.accepts
                except ConfigError as error:
                    where = "" if str(error).startswith("reward ") else f"reward {part.name}: "
                    raise ConfigError(f"{where}{error}") from error
                if columns is not None and accepts.needs:
                    part.check_columns(columns)
            undo.pop_all()
        return cls(parts)

    def score(self, groups: Sequence[Group], step: int = 0) -> list[Group]:
        """The groups with a `Score` for every completion.

        Raises RewardError (a fault where `on_error` is "raise", a list of the wrong length), DataError (a row lacks a
        column), TrainingError when no completion of two or more has a reward without fault: the first fault is shown.
        """
        replies = {part.name: part.values(groups, step) for part in self.parts}
        count = sum(len(group.completions) for group in groups)
        scores = [
            replace(self._score({name: found[index] for name, found in replies.items()}), extras=self._extras(index))
            for index in range(count)
        ]
        self.fault_counts = Counter(score.fault.partition(":")[0] for score in scores if score.fault is not None)
        self.metrics = {
            f"{part.name}/{name}": math.fsum(values) / len(values)
            for part in self.parts
            for name, values in part.metrics.items()
        }
        if count > 1 and all(score.fault is not None for score in scores):
            raise TrainingError(_all_faulted(count, self.fault_counts, replies))
        remaining = iter(scores)
        return [replace(group, scores=tuple(next(remaining) for _ in group.completions)) for group in groups]

    def _extras(self, index: int) -> dict[str, Any]:
        """What the parts noted of completion number `index`, by "part/name"; None is nothing."""
        return {
            f"{part.name}/{name}": values[index]
            for part in self.parts
            for name, values in part.extras.items()
            if values[index] is not None
        }

    def _score(self, replies: Mapping[str, Reply]) -> Score:
        values: dict[str, float | None] = {}
        fault, masked = None, False
        for part in self.parts:
            reply = replies[part.name]
            values[part.name] = reply.value
            if reply.fault is None:
                continue
            fault = fault or f"{reply.fault}: {part.name}: {_last_line(reply.message)}"
            on_error = part.settings.on_error
            if on_error == "raise":
                raise RewardError(
                    f"reward {part.name} failed ({reply.fault}), and its on_error is 'raise':\n{reply.message}"
                )
            if on_error == "mask":
                masked = True
            else:
                values[part.name] = float(on_error)
        terms = [part.settings.weight * value for part in self.parts if (value := values[part.name]) is not None]
        reward = math.fsum(terms) if all(map(math.isfinite, terms)) else math.inf
        if masked or not terms:
            return Score(0.0, False, values, fault or "none: no reward applies: every part returned None")
        if not math.isfinite(reward):
            return Score(0.0, False, values, "not_finite: the weighted sum of the parts is too large")
        return Score(reward, True, values, fault)

    def close(self) -> None:
        """End the workers. Closing twice is allowed."""
        for part in self.parts:
            part.runner.close()

    def __enter__(self) -> RewardSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _component(
    item: Mapping[str, Any] | RewardSettings | Callable[..., Any], where: str, base: Path | None
) -> RewardSettings:
    if callable(item) and not isinstance(item, RewardSettings):
        return Python(function=item)
    component = build(item, REWARD_KINDS, where, kind_meant(item), base)
    if not isinstance(component, RewardSettings):
        raise ConfigError(f"{where}.kind: {type(component).__name__} is not a reward: derive it from RewardSettings")
    return component


def _names(chosen: Sequence[RewardSettings]) -> list[str]:
    """Each reward's own name; unnamed ones of the same kind are numbered. Raises ConfigError for a name given twice."""
    names: list[str] = []
    for component in chosen:
        name = component.name or component.default_name
        if component.name is not None and sum(other.name == name for other in chosen) > 1:
            raise ConfigError(f"rewards: the name {name!r} is given twice; parts are told apart by name")
        free = (candidate for candidate in (name, *(f"{name}_{n}" for n in range(2, len(chosen) + 2))))
        names.append(next(candidate for candidate in free if candidate not in names))
    return names


def _all_faulted(count: int, kinds: Counter[str], replies: Mapping[str, Sequence[Reply]]) -> str:
    counted = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    first = next(((name, r) for name, found in replies.items() for r in found if r.fault is not None), None)
    if first is None:
        return (
            f"no reward applies to any of {count} completions: every part returned None (is the answer column right?)"
        )
    name, reply = first
    return f"all rewards of {count} completions have a fault ({counted}). The first, of {name}:\n{reply.message}"


def _last_line(message: str) -> str:
    return message.strip().rpartition("\n")[2][:300]
