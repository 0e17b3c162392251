"""All rewards of a run: they give every completion a `Score`, and `on_error` decides what a fault means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError, DataError
from oncurve.components import build, lacking
from oncurve.rewards.component import RewardComponent
from oncurve.rewards.functions.python import Python
from oncurve.rewards.kinds import REWARD_KINDS
from oncurve.rewards.model import NetworkRunner
from oncurve.rewards.scoring.deferred import Locate, RewardScoring
from oncurve.rewards.settings import InProcess, RewardSettings, WorkerSettings, check_reward, kind_meant
from oncurve.types import Group

if TYPE_CHECKING:
    from oncurve.models.classifiers import Classifier


class RewardSet(Closing):
    """Scores groups: reward = Σ weight * value over the components that apply.

    A component whose value is None does not apply. A completion to which no component applies, or with a fault where
    `on_error` is "mask", is not valid: its reward is 0 and it is left out of statistics and loss. `Score.fault` is
    `"<kind>: <component>: <message>"`.

    components       the rewards, in the order of the settings
    announcements    lines about them for the plan
    """

    def __init__(self, components: Sequence[RewardComponent]) -> None:
        self.components = tuple(components)
        self.announcements = [f"reward {each.name} {line}" for each in self.components for line in _announced(each)]
        self.locate: Locate | None = None
        """Finds the tokens in which steps end. Needed by rewards that score steps; set where the tokenizer is known."""

    @classmethod
    def build(
        cls,
        tables: Sequence[Mapping[str, Any] | RewardSettings | Callable[..., Any]],
        base: Path | None = None,
    ) -> RewardSet:
        """Return the rewards of tables, settings or plain functions. Their workers are started and have loaded their
        code.

        base   the folder against which paths are resolved

        Raises ConfigError: no reward, an impossible setting, a function that cannot be loaded.
        """
        if not tables:
            raise ConfigError("rewards: a run needs at least one; add a [[rewards]] table, such as kind = 'math'")
        chosen = [_component(item, f"rewards.{index}", base) for index, item in enumerate(tables)]
        with ExitStack() as undo:
            components = []
            for name, settings in zip(component_names(chosen), chosen, strict=True):
                with _named(name):
                    runner = settings.start(base)
                if problem := lacking(
                    runner, ("about", "run", "close"), "runner, which start(base) must return; there is InProcess"
                ):
                    raise ConfigError(f"reward {name}: {problem}")
                components.append(RewardComponent(name, settings, runner))
                undo.callback(components[-1].runner.close)
            for component in components:
                with _named(component.name):
                    _ = component.accepts
            undo.pop_all()
        return cls(components)

    def check_rows(self, rows: Iterable[Mapping[str, Any]], place: Callable[[int], str]) -> None:
        """Raises DataError for the first row that lacks what a reward needs, with the number of other such rows.

        rows    the columns of each prompt, as rewards are given them
        place   the place of row number i of `rows` in its source, in words
        """
        first, others = "", 0
        for index, row in enumerate(rows):
            wrong = next(filter(None, (component.complaint(row) for component in self.components)), None)
            if wrong is not None and not first:
                first = f"{place(index)}: {wrong}"
            elif wrong is not None:
                others += 1
        if first:
            raise DataError(first + (f" (and so {others:,} other row{'s' * (others > 1)})" if others else ""))

    def score_with(self, classifier: Classifier) -> None:
        """Give this network to the rewards by a network without a `path`. Raises ConfigError: it has another head."""
        for component in self.components:
            runner = component.runner
            if isinstance(runner, NetworkRunner) and runner.classifier is None:
                if runner.head != classifier.head:
                    raise ConfigError(
                        f"reward {component.name} needs a reward model of kind {runner.head!r}, and reward_model.kind "
                        f"is {classifier.head!r}"
                    )
                runner.classifier = classifier

    @property
    def keeps(self) -> bool:
        """Return whether a reward has something that `keep_in` keeps."""
        return any(hasattr(component.runner, "keep_in") for component in self.components)

    def keep_in(self, folder: Path) -> None:
        """Keep in `folder` what a resumed run needs to have the same rewards: a file for each reward that has some."""
        for component in self.components:
            keep = getattr(component.runner, "keep_in", None)
            if keep is not None:
                keep(folder / f"{component.name}.jsonl")

    def begin(self, step: int = 0) -> RewardScoring:
        """Return the scoring of one step, to which groups can be submitted while others are still being sampled."""
        return RewardScoring(self.components, step, self.locate)

    def score(self, groups: Sequence[Group], step: int = 0) -> list[Group]:
        """Return the groups with a `Score` for every completion. Raises the errors of `RewardScoring.finish`."""
        with self.begin(step) as scoring:
            return scoring.finish(groups)

    def close(self) -> None:
        """End the workers. Closing twice is allowed."""
        for component in self.components:
            component.runner.close()


def _announced(component: RewardComponent) -> Iterator[str]:
    """Yield what the plan says about a reward, after its name."""
    runner, settings = component.runner, component.settings
    if isinstance(runner, InProcess) and runner.reason is not None:
        yield f"runs in this process and cannot be killed: {runner.reason}"
    if isinstance(settings, WorkerSettings) and settings.env_pass:
        plural = "s" * (len(settings.env_pass) > 1)
        yield f"is given the environment variable{plural} {', '.join(settings.env_pass)}"
    if hasattr(runner, "announcement"):
        yield runner.announcement


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Put the reward's name before the message of a ConfigError, unless it has it."""
    try:
        yield
    except ConfigError as error:
        where = "" if str(error).startswith("reward ") else f"reward {name}: "
        raise ConfigError(f"{where}{error}") from error


def _component(
    item: Mapping[str, Any] | RewardSettings | Callable[..., Any], where: str, base: Path | None
) -> RewardSettings:
    if callable(item) and not isinstance(item, RewardSettings):
        return Python(function=item)
    component = build(item, REWARD_KINDS, where, kind_meant(item), base)
    problem = check_reward(component)
    if problem is not None:
        raise ConfigError(f"{where}.kind: {problem}")
    assert isinstance(component, RewardSettings)
    return component


def component_names(chosen: Sequence[RewardSettings]) -> list[str]:
    """Return the name of each reward; unnamed ones of one kind are numbered. Raises ConfigError for a name given
    twice.
    """
    names: list[str] = []
    for component in chosen:
        name = component.name or component.default_name
        if component.name is not None and sum(other.name == name for other in chosen) > 1:
            raise ConfigError(f"rewards: the name {name!r} is given twice; give each reward a name of its own")
        candidates = (name, *(f"{name}_{number}" for number in range(2, len(chosen) + 2)))
        names.append(next(candidate for candidate in candidates if candidate not in names))
    return names


def verifier_of(chosen: Sequence[RewardSettings], named: str | None = None) -> str | None:
    """Return the name of the reward whose value 1 means that a completion is right, whatever its weight; None: not
    known.

    That is the reward `named`, if it is given; else the only checker of answers (`verifies`) of weight >= 0, or of
    several the only one of weight > 0; else, without a checker, the only reward of weight > 0, or the only reward at
    all, of weight 0; rewards that only shape others (`shapes`) do not count. A reward model is never the verifier: its
    value does not say that an answer is right.
    """
    if named is not None:
        return named
    candidates = [each for each in zip(component_names(chosen), chosen, strict=True) if each[1].weight >= 0]
    candidates = [each for each in candidates if not each[1].shapes]
    checkers = [each for each in candidates if each[1].verifies]
    found = checkers if len(checkers) == 1 else [each for each in checkers or candidates if each[1].weight > 0]
    if not found and len(chosen) == 1:
        found = candidates
    return found[0][0] if len(found) == 1 and found[0][1].verifies is not False else None
