"""A trial of rewards before the model loads: each is called with a row's reference answer and with a made-up text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from oncurve.base.errors import RewardError
from oncurve.processes.pool import WorkerReply
from oncurve.rewards.component import RewardComponent, Stepwise, within
from oncurve.rewards.functions.answers import final_answer
from oncurve.rewards.functions.verify import Choice
from oncurve.rewards.scoring.deferred import ComponentScoring
from oncurve.rewards.settings import InProcess, WorkerSettings
from oncurve.types import Completion, Group, Prompt

MADE_UP = "I do not know."
_AT = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


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
    return not (asks or loads or kept_here or played or "completion_ids" in component.accepts.takes)


def tried(component: RewardComponent, prompt: Prompt, place: str) -> Trial:
    """Call a reward for the row at `place`. Raises DataError: a column cannot be sent to its worker."""
    texts = [*_with_reference(component, prompt), MADE_UP]
    try:
        replies = _replies(component, prompt, texts)
    except RewardError as error:  # a list of the wrong length
        return Trial(f"{place}: {error}")
    if component.accepts.batch and all(reply.fault for reply in replies):  # one completion fails the whole batch
        replies = [_replies(component, prompt, [text])[0] for text in texts]
    *reference, made_up = replies
    faults = [(text, reply) for text, reply in zip(texts, replies, strict=True) if reply.fault is not None]
    told = None
    if faults:
        text, reply = faults[0]
        told = f"reward {component.name} failed for {place} and the completion {text!r:.80}: {_described(reply)}"
    certain = all(reply.fault for reply in reference) if reference else made_up.fault not in (None, "exception")
    values = [_value(reply) for reply in reference]
    known = [value for value in values if value is not None]
    return Trial(told if certain else None, told, max(known, default=None), _value(made_up))


def _with_reference(component: RewardComponent, prompt: Prompt) -> list[str]:
    """Return completions with the reference answer of the row: as it stands, and in the forms in which answers are
    marked.
    """
    column = getattr(component.settings, "answer", "answer")
    given = prompt.columns.get(column)
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
    """Return a fault in a sentence: its last words, and the line of the user's code."""
    *_, last = reply.message.strip().splitlines() or [str(reply.fault)]
    places = _AT.findall(reply.message)
    return f"{last} ({reply.fault}{f', {places[-1][0]} line {places[-1][1]}' if places else ''})"
