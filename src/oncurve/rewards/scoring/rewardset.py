"""All rewards of a run: they give every completion a `Score`, and `on_error` decides what a fault means.

They can be tried before the model loads: each is called with a row's reference answer and with a made-up text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError, DataError, RewardError
from oncurve.components import build, lacking
from oncurve.processes import headline, place_of
from oncurve.processes.pool import WorkerReply
from oncurve.rewards.component import RewardComponent, Stepwise, within
from oncurve.rewards.functions.answers import final_answer
from oncurve.rewards.functions.python import Python
from oncurve.rewards.functions.verify import Choice
from oncurve.rewards.kinds import REWARD_KINDS
from oncurve.rewards.model import NetworkRunner
from oncurve.rewards.scoring.deferred import ComponentScoring, Locate, RewardScoring
from oncurve.rewards.settings import InProcess, RewardSettings, WorkerSettings, check_reward, kind_meant
from oncurve.types import Completion, Group, Prompt

if TYPE_CHECKING:
    from oncurve.models.classifiers import Classifier

MADE_UP, STAND_IN = "I do not know.", "4"
"""A completion, and an answer where the row has none."""


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


@dataclass(frozen=True)
class Trial:
    """The outcome of one reward on one row.

    broken      a sentence on a fault that every completion with the reference answer has, too; None: it has none
    faulted     a sentence on a fault of some of the completions; None: there is none
    reference   the highest value of the completions with the reference answer; None: no answer, or none has a value
    made_up     the value of the made-up one; None: a fault, or the reward does not apply
    """

    broken: str | None = None
    faulted: str | None = None
    reference: float | None = None
    made_up: float | None = None

    @property
    def blind(self) -> bool:
        """Return whether the reference answer is worth no more than a made-up text."""
        return self.reference is not None and self.made_up is not None and self.reference <= self.made_up


def can_be_tried(component: RewardComponent) -> bool:
    """Return whether a call of the reward needs no network, service, tokens or episode, and leaves nothing here."""
    settings, runner = component.settings, component.runner
    asks = hasattr(runner, "announcement") or (isinstance(settings, WorkerSettings) and bool(settings.env_pass))
    loads = settings.network is not None or settings.own_model is not None
    kept_here = isinstance(runner, InProcess) and (
        runner.reason is not None or not type(settings).__module__.startswith("oncurve.")
    )
    played = settings.scores_turns or "environments" in component.accepts.takes
    return not (asks or loads or kept_here or played or {"completion_ids", "episode"} & {*component.accepts.takes})


def tried(component: RewardComponent, prompt: Prompt, place: str) -> Trial:
    """Call a reward for the row at `place`. Raises DataError: a column cannot be sent to its worker."""
    answered = _with_reference(component, prompt.columns.get(getattr(component.settings, "answer", "answer")))
    texts = [*(answered or _with_reference(component, STAND_IN)), MADE_UP]
    try:
        replies = _replies(component, prompt, texts)
    except RewardError as error:  # a list of the wrong length
        return Trial(f"{place}: {error}")
    if component.accepts.batch and all(reply.fault for reply in replies):  # one completion fails the whole batch
        replies = [_replies(component, prompt, [text])[0] for text in texts]
    made_up, reference = replies[-1], replies[: len(answered)]
    faults = [(text, reply) for text, reply in zip(texts, replies, strict=True) if reply.fault is not None]
    told = None
    if faults:
        text, reply = faults[0]
        told = f"reward {component.name} failed for {place} and the completion {text!r:.80}: {_described(reply)}"
    failed = all(each.fault for each in reference or replies)
    certain = failed or not (reference or made_up.fault in (None, "exception"))
    known = [value for reply in reference if (value := _value(reply)) is not None]
    return Trial(told if certain else None, told, max(known, default=None), _value(made_up))


def _with_reference(component: RewardComponent, given: Any) -> list[str]:
    """Return completions with the answer `given`: as it stands, and in the forms in which answers are marked."""
    if not isinstance(given, str | int | float) or given == "":
        return []
    if isinstance(component.settings, Choice) and component.settings.options is not None:
        return []
    whole = str(given)
    marked = final_answer(whole)
    answer = whole if marked is None else marked
    after = getattr(component.settings, "after", None) or ""
    forms = rf"<think>{whole}</think>{after}<answer>{answer}</answer> The answer is \boxed{{{answer}}}"
    return list(dict.fromkeys([f"{after}{whole}", f"{forms}\n#### {answer}", f"{after}{answer}"]))


def _replies(component: RewardComponent, prompt: Prompt, texts: Sequence[str]) -> list[WorkerReply]:
    ids = [tuple(text.encode()) for text in texts]
    completions = [
        Completion(tokens, text, (0.0,) * len(tokens), "eos", number, 0)
        for number, (tokens, text) in enumerate(zip(ids, texts, strict=True))
    ]
    groups = [Group(prompt, tuple(completions))]
    with ExitStack() as undo:
        scoring = ComponentScoring(component, 0, undo)
        scoring.launch(groups)
        try:
            found = scoring.replies(groups)
        except (KeyError, TypeError, AttributeError) as error:
            return [WorkerReply(None, "type", f"it returned something else than rewards ({error!r})")] * len(texts)
    return [within(reply, len(text)) for reply, text in zip(found, texts, strict=True)]


def _value(reply: WorkerReply) -> float | None:
    return reply.value.value if isinstance(reply.value, Stepwise) else reply.value


def _described(reply: WorkerReply) -> str:
    """Return a fault in a sentence: what was raised, and the line of the user's code."""
    return f"{headline(reply.message) or reply.fault} ({reply.fault}{place_of(reply.message)})"
