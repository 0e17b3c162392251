"""The rewards of one step: groups are handed in as they end, workers begin with them at once, and scores come last."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from oncurve.errors import DataError, OncurveError, RewardError, TrainingError
from oncurve.rewards.parts import LARGEST_REWARD, Part, Stepwise, checked, completion_count, within
from oncurve.types import Completion, Group, Prompt, Score
from oncurve.workers import Job, Reply, WorkerPool

__all__ = ["Afterwards", "Locate", "Scoring"]

Locate = Callable[[Prompt, Completion, Sequence[int]], tuple[int, ...]]
"""Where steps that end behind these characters of a completion's text end in its tokens: the index of each last one."""


class Scoring:
    """The scores of one step, worked on while some of its groups are still being written. Single use.

        with rewards.begin(step) as scoring:
            groups = engine.generate(prompts, draw, on_group=scoring.submit)
            groups = scoring.finish(groups)

    Rewards in workers that look at one completion at a time begin when a group is submitted. A batch function sees the
    whole step in one call, and a reward in this process would keep the sampler waiting: both are for `finish`. The
    scores do not depend on what was submitted, nor on the order. Left before `finish` is through (an interrupt, a step
    given up), the workers that are at it are replaced.

    Of a finished one:

    fault_counts         faults by kind: exception, exit, memory, timeout, died, type, not_finite, none
    metrics              means of what TRL functions logged (`log_metric`), by "part/name"; what they noted of each
                         completion (`log_extra`) is in its `Score.extras`
    overlapped_seconds   time that workers spent on submitted groups before `finish`, all workers together
    """

    def __init__(self, parts: Sequence[Part], step: int, locate: Locate | None = None) -> None:
        self._submitted: dict[int, Group] = {}
        self._locate = locate
        self._undo = ExitStack()
        self._parts = [PartScoring(part, step, self._undo) for part in parts]
        self.fault_counts: Counter[str] = Counter()
        self.metrics: dict[str, float] = {}
        self.overlapped_seconds = 0.0

    def submit(self, index: int, group: Group) -> None:
        """Group number `index` has ended: let workers begin. What is wrong with its row is said in `finish`."""
        self._submitted[index] = group
        for part in self._parts:
            part.submit(index, group)

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """All groups, in order, with a `Score` for every completion; `groups[i]` is what was submitted as i, if it was.

        Raises RewardError (a fault where `on_error` is "raise", a list of the wrong length), DataError (a row lacks a
        column), TrainingError when no completion of two or more has a reward without fault: the first fault is shown.
        """
        for index, group in self._submitted.items():
            if not 0 <= index < len(groups) or groups[index].completions != group.completions:
                raise ValueError(f"group {index} is not the one that was submitted")
        for part in sorted(self._parts, key=PartScoring.runs_here):  # workers are at it meanwhile
            part.launch(groups)
        replies = [part.replies(groups) for part in self._parts]
        self._undo.close()
        self.overlapped_seconds = math.fsum(part.overlapped_seconds for part in self._parts)
        self.metrics = {
            _as_text(f"{scored.part.name}/{name}"): math.fsum(values) / len(values)
            for scored in self._parts
            for name, values in scored.metrics.items()
            if values
        }
        written = [(group.prompt, completion) for group in groups for completion in group.completions]
        scores = [
            self._score(index, given, *completion)
            for index, (given, completion) in enumerate(zip(zip(*replies, strict=True), written, strict=True))
        ]
        self.fault_counts = Counter(score.fault.partition(":")[0] for score in scores if score.fault is not None)
        if len(scores) > 1 and all(score.fault is not None for score in scores):
            raise TrainingError(self._all_faulted(len(scores), replies))
        remaining = iter(scores)
        return [replace(group, scores=tuple(next(remaining) for _ in group.completions)) for group in groups]

    def _score(self, index: int, replies: Sequence[Reply], prompt: Prompt, completion: Completion) -> Score:
        """The score of completion number `index`, for which the parts replied so."""
        values: dict[str, float | None] = {}
        terms = []
        steps = _Steps(len(completion.text))
        part_steps: dict[str, tuple[tuple[int, float], ...]] = {}
        fault, masked = None, False
        for scored, said in zip(self._parts, replies, strict=True):
            reply = within(said, len(completion.text))
            part, value = scored.part, reply.value
            if reply.fault is not None:
                fault = fault or f"{reply.fault}: {part.name}: {_last_line(reply.message)}"
                on_error = part.settings.on_error
                if on_error == "raise":
                    raise RewardError(
                        f"reward {part.name} failed ({reply.fault}), and its on_error is 'raise':\n{reply.message}"
                    )
                masked = masked or (on_error == "mask" and part.settings.weight != 0)
                value = None if on_error == "mask" else float(on_error)
            steps.add(value, part.settings.weight)
            if isinstance(value, Stepwise):
                part_steps[part.name] = tuple(zip(value.ends, value.rewards, strict=True))
                value = value.value
            values[part.name] = value
            if value is not None:
                terms.append(part.settings.weight * value)
        reward = math.fsum(terms) if all(map(_is_usable, terms)) else math.inf
        ends, rewards = steps.result()
        valid = bool(terms) and not masked and all(map(_is_usable, (reward, *rewards)))
        if not terms and not masked:
            fault = fault or "none: no reward applies: every part returned None"
        elif not masked and not valid:
            fault = "not_finite: the weighted sum of the parts is too large"
        extras = self._extras(index)
        score = Score(reward if valid else 0.0, valid, values, fault, extras=extras, part_steps=part_steps)
        if not valid or not ends:
            return score
        tokens = self._tokens(prompt, completion, ends)
        return replace(score, step_ends=tokens, step_rewards=rewards, step_offsets=ends)

    def _tokens(self, prompt: Prompt, completion: Completion, ends: Sequence[int]) -> tuple[int, ...]:
        if self._locate is None:
            raise RewardError("a reward judged steps of a text, and without a tokenizer nobody knows their tokens")
        return self._locate(prompt, completion, ends)

    def _extras(self, index: int) -> dict[str, Any]:
        """What the parts noted of completion number `index`, by "part/name"; None is nothing."""
        return {
            f"{scored.part.name}/{name}": values[index]
            for scored in self._parts
            for name, values in scored.extras.items()
            if values[index] is not None
        }

    def _all_faulted(self, count: int, replies: Sequence[Sequence[Reply]]) -> str:
        counted = ", ".join(f"{number} {kind}" for kind, number in self.fault_counts.most_common())
        named = zip(self._parts, replies, strict=True)
        first = next(((s.part.name, r) for s, found in named for r in found if r.fault is not None), None)
        if first is None:
            return (
                f"no reward applies to any of {count} completions: every part returned None "
                "(is the answer column right?)"
            )
        name, reply = first
        return f"all rewards of {count} completions have a fault ({counted}). The first, of {name}:\n{reply.message}"

    def __enter__(self) -> Scoring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()


class _Steps:
    """The steps of one completion by what all parts say: at each end the weighted sum of what is said of it.

    A part of weight 0 only looks on. A part that judges the completion as a whole does so at the end of its text.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._rewards: dict[int, float] = {}
        self._whole = 0.0
        self._judged_whole = False

    def add(self, value: Stepwise | float | None, weight: float) -> None:
        """What a part said."""
        if not weight:
            return
        if isinstance(value, Stepwise):
            for end, reward in zip(value.ends, value.rewards, strict=True):
                self._rewards[end] = self._rewards.get(end, 0.0) + weight * reward
        elif value is not None:
            self._whole += weight * value
            self._judged_whole = True

    def result(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Ends and rewards, in the order of the text; nothing where no part judged steps."""
        if not self._rewards:
            return (), ()
        if self._judged_whole:
            self._rewards[self._length] = self._rewards.get(self._length, 0.0) + self._whole
        ends = sorted(self._rewards)
        return tuple(ends), tuple(self._rewards[end] for end in ends)


class PartScoring:
    """One reward's share of a step. `launch` has it begin with everything, `replies` waits for the end.

    metrics   the numbers of each name that a TRL function logged, in the order in which they came (`log_metric`)
    extras    of each name one value a completion, in order (`log_extra`); None: nothing was said of that one
    """

    def __init__(self, part: Part, step: int, undo: ExitStack) -> None:
        self.part = part
        self.metrics: dict[str, list[float]] = {}
        self.extras: dict[str, list[Any]] = {}
        self._step = step
        self._job: Job | None = None
        if isinstance(part.runner, WorkerPool):
            self._job = undo.enter_context(part.runner.begin())
        self._order: list[int] = []
        self._here: list[Reply] = []
        self._error: OncurveError | None = None

    def runs_here(self) -> bool:
        """Whether it keeps this process busy."""
        return self._job is None

    @property
    def overlapped_seconds(self) -> float:
        """Time that workers spent on it before they were waited for."""
        return 0.0 if self._job is None else self._job.overlapped_seconds

    def submit(self, index: int, group: Group) -> None:
        """Begin with a group, where that can be done without keeping anybody waiting."""
        if self._job is None or self.part.accepts.batch:
            return
        try:
            self._hand_in(self.part.items([group]))
        except OncurveError:
            return  # it is tried again in `launch`, in the order of the groups
        self._order.append(index)

    def launch(self, groups: Sequence[Group]) -> None:
        """Begin with what has not been submitted. An error waits for `replies`: parts complain in their order."""
        missing = sorted(set(range(len(groups))) - set(self._order))
        try:
            if not self.part.accepts.batch:
                self._hand_in(self.part.items([groups[index] for index in missing]))
            elif groups:
                self._hand_in([self.part.lists(groups, self._step)])
            self._order += missing
        except OncurveError as error:
            self._error = error

    def replies(self, groups: Sequence[Group]) -> list[Reply]:
        """One reply a completion, group by group: `value` is a finite float or None, or there is a `fault`.

        Raises DataError: a column is missing in a row, or cannot be sent to a worker. RewardError: a list of the
        wrong length.
        """
        if self._error is not None:
            raise self._error
        found = self._here if self._job is None else self._job.replies()
        if self.part.accepts.batch:
            return self._batch(groups, *found) if groups else []
        remaining = iter(found)
        by_group = {index: [checked(next(remaining)) for _ in groups[index].completions] for index in self._order}
        return [reply for index in range(len(groups)) for reply in by_group[index]]

    def _hand_in(self, items: Sequence[Any]) -> None:
        try:
            if self._job is None:
                self._here = self.part.runner.run(items)
            else:
                self._job.add(items)
        except TypeError as error:
            raise self._cannot_be_sent(error) from error

    def _cannot_be_sent(self, error: TypeError) -> DataError:
        return DataError(f"reward {self.part.name}: a column cannot be sent to its worker: {error}")

    def _batch(self, groups: Sequence[Group], reply: Reply) -> list[Reply]:
        """The replies of one call for all; where it faulted, of one a group, so that a bad item costs no more."""
        count = completion_count(groups)
        if reply.fault is None:
            return self._unpacked(reply, 0, count, count)
        if len(groups) == 1:
            return [reply] * count
        last = reply.message.strip().rpartition("\n")[2]
        self.part.tell("reward %s failed on a whole batch (%s); it is called once a group then", last)
        try:
            replies = self.part.runner.run([self.part.lists([group], self._step) for group in groups])
        except TypeError as error:
            raise self._cannot_be_sent(error) from error
        found: list[Reply] = []
        for one, group in zip(replies, groups, strict=True):
            found += self._unpacked(one, len(found), len(group.completions), count)
        return found

    def _unpacked(self, reply: Reply, start: int, expected: int, total: int) -> list[Reply]:
        """The replies of the `expected` completions from number `start` of `total` on; what was logged is kept."""
        if reply.fault is not None:
            return [reply] * expected
        said: Mapping[str, Any] = reply.value
        rewards = self.part.values(said["rewards"], expected)
        for name, values in said["metrics"].items():
            usable = [value for value in values if _is_usable(value)]
            if len(usable) < len(values):
                self.part.tell("reward %s: log_metric(%r, ...) was given what is not finite; it is left out", name)
            self.metrics.setdefault(name, []).extend(usable)
        for name, values in said["extras"].items():
            if len(values) == expected:
                self.extras.setdefault(name, [None] * total)[start : start + expected] = values
            else:
                self.part.tell("reward %s: log_extra(%r, ...) needs one value a completion; it is left out", name)
        return rewards


@dataclass
class Afterwards:
    """A scoring that does nothing while groups are being written: `finish` is `score`."""

    score: Callable[[Sequence[Group]], list[Group]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    overlapped_seconds: float = 0.0

    def submit(self, index: int, group: Group) -> None:
        """Nothing yet."""

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their scores."""
        return self.score(groups)

    def __enter__(self) -> Afterwards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""


def _as_text(name: str) -> str:
    """A name as a file can hold it: user code may name a metric by half a character."""
    return name.encode("utf-8", "replace").decode()


def _is_usable(reward: float) -> bool:
    return abs(reward) <= LARGEST_REWARD  # not so for NaN


def _last_line(message: str) -> str:
    return message.strip().rpartition("\n")[2][:300]
