"""Scorings: the rewards of one step, begun by workers while groups are still being sampled, and collected then."""

import math
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from oncurve.base.closing import Closing
from oncurve.base.errors import DataError, OncurveError, RewardError, TrainingError
from oncurve.processes import headline
from oncurve.processes.pool import Job, WorkerReply
from oncurve.rewards.component import LARGEST_REWARD, RewardComponent, Stepwise, checked, within
from oncurve.rewards.settings import settled
from oncurve.types import Completion, Group, Prompt, Score


class Scoring(Closing):
    """The scores of one call of the engine, which may be begun while other groups are still being sampled.

    rewarded             there is a reward at all; without one every score is 0
    metrics              numbers that the rewards logged, once finished
    overlapped_seconds   time that workers spent on rewards before `finish`, once finished
    """

    rewarded: bool = True
    metrics: Mapping[str, float] = MappingProxyType({})
    overlapped_seconds: float = 0.0

    def submit(self, index: int, group: Group) -> None:
        """Take group number `index`, which has ended."""

    @abstractmethod
    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """Return all groups, each completion with its score."""

    def close(self) -> None:
        """Nothing is held."""


class DeferredScoring(Scoring):
    """A scoring that does nothing while groups are being sampled: `finish` is `score`."""

    def __init__(self, score: Callable[[Sequence[Group]], list[Group]]) -> None:
        self._score = score

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with their scores."""
        return self._score(groups)


class Scorer(Protocol):
    """Fills in the scores of groups."""

    def begin(self, step: int = 0) -> AbstractContextManager[Scoring]:
        """Return the scoring of one call of the engine. `step` is for rewards that depend on how far the run is."""

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups, each completion with its score."""


Sent = TypeVar("Sent")

Locate = Callable[[Prompt, Completion, Sequence[int]], tuple[int, ...]]
"""Prompt, completion and the offsets just after each step in its text -> the index of each step's last token."""


class RewardScoring(Scoring):
    """The scores of one step, worked on while some of its groups are still being written. Single use.

        with rewards.begin(step) as scoring:
            groups = engine.generate(prompts, draw, on_group=scoring.submit)
            groups = scoring.finish(groups)

    Rewards in workers that take one completion at a time begin when a group is submitted. A batch function takes the
    whole step in one call, and a reward in this process would keep the sampler waiting: `finish` calls both. The scores
    do not depend on which groups were submitted, nor on their order. Where the block ends before `finish` returns (an
    interrupt, an abandoned step), the busy workers are replaced.

    After `finish`:

    metrics              means of the numbers that TRL functions logged (`log_metric`), by "component/name"; the values
                         that they logged for each completion (`log_extra`) are in its `Score.extras`
    overlapped_seconds   time that all workers spent on submitted groups before `finish`
    """

    def __init__(self, components: Sequence[RewardComponent], step: int, locate: Locate | None = None) -> None:
        self._submitted: dict[int, Group] = {}
        self._locate = locate
        self._undo = ExitStack()
        self._components = [ComponentScoring(component, step, self._undo) for component in components]
        self.rewarded = bool(components)

    def submit(self, index: int, group: Group) -> None:
        """Hand group number `index` to the workers. `finish` reports what is wrong with its row."""
        self._submitted[index] = group
        for scored in self._components:
            scored.submit(index, group)

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """Return all groups, in order, with a `Score` for every completion; a submitted group i must be `groups[i]`.

        Without a component every reward is 0.

        Raises RewardError (a fault where `on_error` is "raise", a list of the wrong length), DataError (a row lacks a
        column), TrainingError when no completion of two or more has a reward without fault: the first fault is shown.
        """
        for index, group in self._submitted.items():
            if not 0 <= index < len(groups) or groups[index].completions != group.completions:
                raise ValueError(f"group {index} is not the one that was submitted")
        if not self._components:
            return [replace(group, scores=tuple(Score(0.0) for _ in group.completions)) for group in groups]
        for scored in sorted(self._components, key=lambda each: each.job is None):  # workers work meanwhile
            scored.launch(groups)
        replies = [scored.replies(groups) for scored in self._components]
        self._undo.close()
        jobs = (scored.job for scored in self._components if scored.job is not None)
        self.overlapped_seconds = math.fsum(job.overlapped_seconds for job in jobs)
        self.metrics = {
            # as UTF-8: user code may name a metric by a lone surrogate
            f"{scored.component.name}/{name}".encode("utf-8", "replace").decode(): math.fsum(values) / len(values)
            for scored in self._components
            for name, values in scored.metrics.items()
            if values
        }
        written = [(group.prompt, completion) for group in groups for completion in group.completions]
        scores = [
            self._score(index, given, *completion)
            for index, (given, completion) in enumerate(zip(zip(*replies, strict=True), written, strict=True))
        ]
        if len(scores) > 1 and all(score.fault is not None for score in scores):
            raise TrainingError(self._all_faulted(scores, replies))
        remaining = iter(scores)
        return [replace(group, scores=tuple(next(remaining) for _ in group.completions)) for group in groups]

    def _score(self, index: int, replies: Sequence[WorkerReply], prompt: Prompt, completion: Completion) -> Score:
        """Return the score of completion number `index`, from one reply per component."""
        values: dict[str, float | None] = {}
        terms = []
        part_steps: dict[str, tuple[tuple[int, float], ...]] = {}
        # The weighted sum at the end of each step, an offset in the text, or at the last token of each turn; a weight
        # of 0 has no part in it. `whole` is that of the rewards for the completion alone, and stands at its end.
        steps: defaultdict[int, float] = defaultdict(float)
        whole: float | None = None
        fault, masked = completion.fault, completion.fault is not None
        weights = tuple(scored.component.settings.weight for scored in self._components)
        for scored, given in zip(self._components, replies, strict=True):
            reply = within(given, 0 if completion.turns else len(completion.text))
            component, value, weight = scored.component, reply.value, scored.component.settings.weight
            if reply.fault is not None:
                fault = fault or f"{reply.fault}: {component.name}: {headline(reply.message)[:300]}"
                value = _value_of_fault(component, reply)
                masked = masked or (value is None and weight != 0)
            if isinstance(value, Stepwise):
                part_steps[component.name] = tuple(zip(value.ends, value.rewards, strict=True))
                for end, step in part_steps[component.name] if weight else ():
                    steps[end] += weight * step
                value = value.value
            elif value is not None and weight:
                of_turns = component.settings.scores_turns
                for turn in completion.turns if of_turns else ():
                    if turn.reward is not None:
                        steps[turn.end - 1] += weight * turn.reward
                alone = completion.outcome if of_turns else value
                whole = whole if alone is None else (whole or 0.0) + weight * alone
            values[component.name] = value
            if value is not None and (weight or not any(weights)):  # one of weight 0 is only logged
                terms.append(weight * value)
        reward = math.fsum(terms) if all(map(_is_usable, terms)) else math.inf
        if steps and whole is not None:
            written = [turn.end - 1 for turn in completion.turns if turn.role == "assistant"]
            steps[max(written, default=len(completion.text))] += whole
        ends = tuple(sorted(steps))
        rewards = tuple(steps[end] for end in ends)
        valid = bool(terms) and not masked and all(map(_is_usable, (reward, *rewards)))
        if not terms and not masked:
            fault = fault or "none: no reward applies: each returned None, or has weight 0"
        elif not masked and not valid:
            fault = "not_finite: the weighted sum of the rewards is too large"
        extras = {
            f"{scored.component.name}/{name}": logged[index]
            for scored in self._components
            for name, logged in scored.extras.items()
            if logged[index] is not None
        }
        score = Score(reward if valid else 0.0, valid, values, fault, (), (), extras, (), part_steps, weights)
        if not valid or not ends:
            return score
        if completion.turns:
            return replace(score, step_ends=ends, step_rewards=rewards)
        if self._locate is None:
            raise RewardError("a reward scored the steps of a text, and without a tokenizer their tokens are not known")
        tokens = self._locate(prompt, completion, ends)
        return replace(score, step_ends=tokens, step_rewards=rewards, step_offsets=ends)

    def _all_faulted(self, scores: Sequence[Score], replies: Sequence[Sequence[WorkerReply]]) -> str:
        count, kinds = len(scores), Counter(str(score.fault).partition(":")[0] for score in scores)
        counted = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        named = zip(self._components, replies, strict=True)
        faulty = ((s.component.name, reply) for s, found in named for reply in found if reply.fault is not None)
        name, reply = next(faulty, (None, None))
        if reply is None and set(kinds) == {"none"}:
            played = any(scoring.component.settings.scores_turns for scoring in self._components)
            why = "does the environment have score(), or Reply a reward?" if played else "is the answer column right?"
            return f"no reward applies to any of {count} completions: each returned None, or has weight 0 ({why})"
        first = f", of {name}:\n{reply.message}" if reply is not None else f": {scores[0].fault}"
        return f"all rewards of {count} completions have a fault ({counted}). The first{first}"

    def close(self) -> None:
        """Cancel what workers have not finished."""
        self._undo.close()


class ComponentScoring:
    """One reward in one step. `launch` begins with all groups, `replies` waits for the results.

    job       what workers compute; None: the reward runs in this process
    metrics   by name the numbers that a TRL function logged (`log_metric`), in their order
    extras    by name one value per completion (`log_extra`), in order; None: no value was logged
    """

    def __init__(self, component: RewardComponent, step: int, undo: ExitStack) -> None:
        self.component = component
        self.metrics: dict[str, list[float]] = {}
        self.extras: dict[str, list[Any]] = {}
        self._step, self._undo = step, undo
        begin: Callable[[], Job] | None = getattr(component.runner, "begin", None)
        self.job = None if begin is None else undo.enter_context(begin())
        self._order: list[int] = []
        self._here: list[WorkerReply] = []
        self._error: OncurveError | None = None

    def submit(self, index: int, group: Group) -> None:
        """Begin with a group, where the caller need not wait for it."""
        if self.job is None or self.component.accepts.batch:
            return
        try:
            self._hand_in(self.component.items([group]))
        except OncurveError:
            return  # `launch` tries again, in the order of the groups
        self._order.append(index)

    def launch(self, groups: Sequence[Group]) -> None:
        """Begin with the groups that were not submitted. `replies` raises the errors, in the order of components."""
        missing = sorted(set(range(len(groups))) - set(self._order))
        try:
            if not self.component.accepts.batch:
                self._hand_in(self.component.items([groups[index] for index in missing]))
            elif groups:
                self._hand_in([self.component.batch_item(groups, self._step)])
            self._order += missing
        except OncurveError as error:
            self._error = error

    def replies(self, groups: Sequence[Group]) -> list[WorkerReply]:
        """Return one reply per completion, group by group: `value` is a finite float or None, or there is a `fault`.

        Raises DataError: a column is missing in a row, or cannot be sent to a worker. RewardError: a list of the
        wrong length.
        """
        if self._error is not None:
            raise self._error
        found = map(settled, self._here) if self.job is None else self.job.replies()
        if self.component.accepts.batch:
            return self._batch(groups, *found) if groups else []
        remaining = iter(found)
        by_group = {index: [checked(next(remaining)) for _ in groups[index].completions] for index in self._order}
        return [reply for index in range(len(groups)) for reply in by_group[index]]

    def _hand_in(self, items: Sequence[Any]) -> None:
        if self.job is None:
            self._here = self._sent(getattr(self.component.runner, "begun", self.component.runner.run), items)
            for future in [reply.value for reply in self._here if isinstance(reply.value, Future)]:
                self._undo.callback(future.cancel)
        else:
            self._sent(self.job.add, items)

    def _sent(self, send: Callable[[Sequence[Any]], Sent], items: Sequence[Any]) -> Sent:
        """Return `send(items)`. Raises DataError: a column cannot be sent."""
        try:
            return send(items)
        except TypeError as error:
            raise DataError(f"reward {self.component.name}: a column cannot be sent to its worker: {error}") from error

    def _batch(self, groups: Sequence[Group], reply: WorkerReply) -> list[WorkerReply]:
        """Return the replies of one call for all; after a fault of one call per group, so that a bad item spoils one
        group.
        """
        count = sum(len(group.completions) for group in groups)
        if reply.fault is None:
            return self._unpacked(reply, 0, count, count)
        if len(groups) == 1:
            return [reply] * count
        said = headline(reply.message)
        self.component.warn_once("reward %s failed on a whole batch (%s); it is called once per group now", said)
        items = [self.component.batch_item([group], self._step) for group in groups]
        replies = self._sent(self.component.runner.run, items)
        found: list[WorkerReply] = []
        for one, group in zip(replies, groups, strict=True):
            found += self._unpacked(one, len(found), len(group.completions), count)
        return found

    def _unpacked(self, reply: WorkerReply, start: int, expected: int, total: int) -> list[WorkerReply]:
        """Return the replies of `expected` completions, from number `start` of `total`; keeps what the function
        logged.
        """
        if reply.fault is not None:
            return [reply] * expected
        result: Mapping[str, Any] = reply.value
        rewards = self.component.values(result["rewards"], expected)
        for name, values in result["metrics"].items():
            usable = [value for value in values if _is_usable(value)]
            if len(usable) < len(values):
                self.component.warn_once(
                    "reward %s: log_metric(%r, ...) was given a value that is not finite; it is left out", name
                )
            self.metrics.setdefault(name, []).extend(usable)
        for name, values in result["extras"].items():
            if len(values) == expected:
                self.extras.setdefault(name, [None] * total)[start : start + expected] = values
            else:
                self.component.warn_once("reward %s: log_extra(%r, ...) needs one value per completion: left out", name)
        return rewards


def _value_of_fault(component: RewardComponent, reply: WorkerReply) -> float | None:
    """Return the value in place of a faulty one; None masks the completion. Raises RewardError where it is to stop."""
    on_error = component.settings.on_error
    if on_error == "raise":
        raise RewardError(f"reward {component.name} failed ({reply.fault}), with on_error = 'raise':\n{reply.message}")
    return None if on_error == "mask" else float(on_error)


def _is_usable(reward: float) -> bool:
    return abs(reward) <= LARGEST_REWARD  # not so for NaN
