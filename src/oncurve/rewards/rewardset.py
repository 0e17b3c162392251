"""The rewards of a run together: a `Score` for every completion, and what becomes of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from oncurve.errors import ConfigError, DataError
from oncurve.rewards import REWARD_KINDS
from oncurve.rewards.model import NetworkRunner
from oncurve.rewards.parts import Part
from oncurve.rewards.python import Python
from oncurve.rewards.scoring import Locate, Scoring
from oncurve.rewards.settings import InProcess, RewardSettings, WorkerSettings, kind_meant
from oncurve.spec import build
from oncurve.types import Group

if TYPE_CHECKING:
    from oncurve.models.classifier import Classifier

__all__ = ["RewardSet", "part_names", "verifier_of"]


class RewardSet:
    """Scores groups: reward = Σ weight * part over the parts that apply.

    A part that is None does not apply. A completion with no applicable part, or with a fault where `on_error` is
    "mask", is not valid: reward 0, out of statistics and loss. `Score.fault` is `"<kind>: <part>: <message>"`.

    parts            the rewards, in the order of the settings
    announcements    what the plan has to say about them
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.announcements: list[str] = [
            f"reward {part.name} runs in this process and cannot be killed: {part.runner.reason}"
            for part in self.parts
            if isinstance(part.runner, InProcess) and part.runner.reason is not None
        ]
        self.announcements += [
            f"reward {part.name} is given the environment variable{'s' * (len(part.settings.env_pass) > 1)} "
            f"{', '.join(part.settings.env_pass)}"
            for part in self.parts
            if isinstance(part.settings, WorkerSettings) and part.settings.env_pass
        ]
        self.locate: Locate | None = None
        """Which tokens write the ends of steps: for rewards that judge steps; who has the tokenizer gives it."""
        self._last = Scoring((), 0)

    @classmethod
    def build(
        cls,
        settings: Sequence[Mapping[str, Any] | RewardSettings | Callable[..., Any]],
        base: Path | None = None,
    ) -> RewardSet:
        """The rewards of tables, components or plain functions; starts their workers and waits until they have loaded.

        base   the folder against which paths are resolved

        Raises ConfigError: no reward, an impossible setting, a function that cannot be loaded.
        """
        if not settings:
            raise ConfigError("rewards: a run needs at least one; add a [[rewards]] table, such as kind = 'math'")
        chosen = [_component(item, f"rewards.{index}", base) for index, item in enumerate(settings)]
        with ExitStack() as undo:
            parts = []
            for name, component in zip(part_names(chosen), chosen, strict=True):
                parts.append(Part(name, component, component.start(base)))
                undo.callback(parts[-1].runner.close)
            for part in parts:
                try:
                    _ = part.accepts
                except ConfigError as error:
                    where = "" if str(error).startswith("reward ") else f"reward {part.name}: "
                    raise ConfigError(f"{where}{error}") from error
            undo.pop_all()
        return cls(parts)

    def check_rows(self, rows: Iterable[Mapping[str, Any]], place: Callable[[int], str]) -> None:
        """Raises DataError at the first row that lacks what a reward needs, and says how many others lack it too.

        rows    the columns of each prompt, as rewards are given them
        place   says where row number i of `rows` comes from
        """
        first, others = "", 0
        for index, row in enumerate(rows):
            wrong = next(filter(None, (part.complaint(row) for part in self.parts)), None)
            if wrong is not None and not first:
                first = f"{place(index)}: {wrong}"
            elif wrong is not None:
                others += 1
        if first:
            raise DataError(first + (f" (and so {others:,} other row{'s' * (others > 1)})" if others else ""))

    def judge_with(self, classifier: Classifier) -> None:
        """Rewards of a network that have none of their own use this one. Raises ConfigError: it judges otherwise."""
        for part in self.parts:
            runner = part.runner
            if isinstance(runner, NetworkRunner) and runner.classifier is None:
                if runner.head != classifier.head:
                    raise ConfigError(
                        f"reward {part.name} judges by {runner.head}, and reward_model.kind is {classifier.head!r}"
                    )
                runner.classifier = classifier

    def begin(self, step: int = 0) -> Scoring:
        """The scoring of one step, to which groups can be submitted while others are still being written."""
        self._last = Scoring(self.parts, step, self.locate)
        return self._last

    def score(self, groups: Sequence[Group], step: int = 0) -> list[Group]:
        """The groups with a `Score` for every completion. Raises what `Scoring.finish` does."""
        with self.begin(step) as scoring:
            return scoring.finish(groups)

    @property
    def fault_counts(self) -> Counter[str]:
        """Faults of the scoring begun last, by kind; see `Scoring`."""
        return self._last.fault_counts

    @property
    def metrics(self) -> Mapping[str, float]:
        """What the rewards logged of themselves in the scoring begun last, by "part/name"; see `Scoring`."""
        return self._last.metrics

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


def part_names(chosen: Sequence[RewardSettings]) -> list[str]:
    """Each reward's own name; unnamed ones of the same kind are numbered. Raises ConfigError for a name given twice."""
    names: list[str] = []
    for component in chosen:
        name = component.name or component.default_name
        if component.name is not None and sum(other.name == name for other in chosen) > 1:
            raise ConfigError(f"rewards: the name {name!r} is given twice; parts are told apart by name")
        free = (candidate for candidate in (name, *(f"{name}_{n}" for n in range(2, len(chosen) + 2))))
        names.append(next(candidate for candidate in free if candidate not in names))
    return names


def verifier_of(chosen: Sequence[RewardSettings], named: str | None = None) -> str | None:
    """The name of the reward whose value 1 says that a completion is right, whatever the weights; None: not known.

    It is the one that is `named`. Else the only checker of answers (`verifies`) that is not punished by its weight; of
    several the only one whose weight is above 0. Else, without a checker, the only reward whose weight is above 0, or
    the only reward there is, of weight 0. A reward model is none: its value is no verdict.
    """
    if named is not None:
        return named
    parts = [part for part in zip(part_names(chosen), chosen, strict=True) if part[1].weight >= 0]
    checkers = [part for part in parts if part[1].verifies]
    found = checkers if len(checkers) == 1 else [part for part in checkers or parts if part[1].weight > 0]
    if not found and len(chosen) == 1:
        found = parts
    return found[0][0] if len(found) == 1 and found[0][1].verifies is not False else None
