"""Lines 5, 7 and 8 of Algorithm 1: the groups of a step: prompts, completions and rewards, drawn when it begins.

In a warm start nothing is sampled: each prompt comes with the completion that the data gives for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from oncurve.base.errors import TrainingError
from oncurve.data import Counts, counted, shares
from oncurve.metrics import Metrics
from oncurve.models import Weights
from oncurve.rewards import Scorer, Scoring
from oncurve.rollout import RolloutEngine, sample
from oncurve.trainer.groups.surplus import DynamicSampling, SurplusGroup
from oncurve.trainer.state import Collected, TrainerState
from oncurve.trainer.updates import divergence_explained
from oncurve.trainer.watching.observe import observe_groups, timer
from oncurve.types import Completion, Group, Prompt, Score

log = logging.getLogger("oncurve.trainer")


class PromptSource(Protocol):
    """Prompts in an order that is a function of the cursor, and of the counts in a curriculum."""

    def take(self, cursor: int, count: int, counts: Counts | None = None) -> tuple[list[Prompt], int]:
        """Return `count` prompts from `cursor` on, and the cursor after them; with a curriculum by the `counts`."""

    def epoch(self, cursor: int) -> float:
        """Return how many times the data has been gone through at `cursor`."""


class GivenUpError(Exception):
    """The groups that were being collected are of no use any more."""


@dataclass
class Drawing:
    """The parts and numbers by which the groups of a step are drawn.

    prompts       of `source` per round of sampling; a step has as many groups
    group_size    G, completions of each
    min_valid     the fewest valid completions that a usable group has
    dynamic       which usable groups are kept; it limits the rounds, too; None: all of one round
    right         of a curriculum: whether a completion is right, None where that is not known; None: there is none
    """

    engine: RolloutEngine
    scorer: Scorer
    source: PromptSource
    prompts: int
    group_size: int
    min_valid: int = 1
    dynamic: DynamicSampling | None = None
    right: Callable[[Score], bool | None] | None = None


@dataclass
class Collecting(Drawing):
    """Draws prompts, samples a group for each, and scores it, for one step. Single use.

    given_up      set from another thread, it ends the collection at the next group
    sampled       the groups of this step so far, also of one that failed
    """

    given_up: threading.Event = field(default_factory=threading.Event)
    sampled: list[Group] = field(default_factory=list)

    def collect(self, state: TrainerState, metrics: Metrics) -> Collected:
        """Return the groups of the step after `state`.

        With dynamic sampling, rounds follow each other until enough groups are kept or `max_rounds` are made. Those
        beyond `prompts` are surplus, less than one round's.

        Raises TrainingError: there is no group to train on. GivenUpError: it was given up.
        """
        kept = list(self._carried_over(state))
        cursor, draw, carried = state.cursor, state.draw, len(kept)
        for _ in range(1 if self.dynamic is None else self.dynamic.max_rounds):
            if len(kept) < self.prompts or self.dynamic is None:
                first, (groups, cursor) = cursor, self._round(state, cursor, draw, metrics)
                draw += 1
                kept += [(first + index, group) for index, group in enumerate(groups) if self._keeps(group)]
        if not kept:
            raise TrainingError(self._nothing_to_train_on(state.step + 1))
        count = len(kept) if self.dynamic is None else self.prompts
        usable, surplus = [group for _, group in kept[:count]], kept[count:]
        if self.dynamic is not None:
            self._observe(state, metrics, draw - state.draw, carried, len(kept), len(usable))
        waiting = {id(group) for _, group in surplus}
        groups = [group for _, group in kept[:carried]] + self.sampled
        return Collected(
            tuple(group for group in groups if id(group) not in waiting),
            tuple(usable),
            tuple(SurplusGroup.of(place, group) for place, group in surplus),
            cursor,
            draw,
            self._counted(state, usable, metrics),
        )

    def _counted(self, state: TrainerState, trained: list[Group], metrics: Metrics) -> Counts:
        """Return the counts of a curriculum after the step."""
        if self.right is None:
            return state.counts
        counts = counted(state.counts, trained, self.right)
        for name, share in shares(counts).items():
            metrics.add(name, share)
        return counts

    def _carried_over(self, state: TrainerState) -> Iterator[tuple[int, Group]]:
        """Return the surplus of the step before, each group with the position of its prompt."""
        for waiting in state.surplus:
            (prompt,), _ = self.source.take(waiting.cursor, 1)
            group = waiting.again(prompt)
            if group is not None:
                yield waiting.cursor, group
            else:
                log.warning("a group kept for this step is left out: the data has another prompt in its place now")

    def _round(self, state: TrainerState, cursor: int, draw: int, metrics: Metrics) -> tuple[list[Group], int]:
        """Return a scored group for each of the next prompts, and the cursor after them."""
        prompts, cursor = self.source.take(cursor, self.prompts, state.counts)
        with self.scorer.begin(state.step) as scoring:
            with timer(metrics, "rollout"), divergence_explained(state.step):
                groups = sample(self.engine, prompts, draw, self.group_size, on_group=partial(self._hand_in, scoring))
            for name, value in self.engine.measured().items():
                metrics.add(name, value)
            return self._scored(groups, scoring, metrics), cursor

    def _hand_in(self, scoring: Scoring, index: int, group: Group) -> None:
        if self.given_up.is_set():
            raise GivenUpError
        scoring.submit(index, group)

    def _scored(self, groups: list[Group], scoring: Scoring, metrics: Metrics) -> list[Group]:
        """Return the groups with the scores that `scoring` began while they were sampled."""
        before = len(self.sampled)
        self.sampled += groups
        with timer(metrics, "reward"):
            groups = scoring.finish(groups)
        self.sampled[before:] = groups
        dropped = sum(not self._is_usable(group) for group in groups)
        observe_groups(metrics, groups, dropped, rewarded=scoring.rewarded)
        metrics.add("time/reward_overlapped", scoring.overlapped_seconds)
        for name, value in scoring.metrics.items():
            metrics.add(f"rewards/{name}", value)
        return groups

    def _is_usable(self, group: Group) -> bool:
        return sum(score.valid for score in group.scores) >= self.min_valid

    def _keeps(self, group: Group) -> bool:
        return self._is_usable(group) and (self.dynamic is None or self.dynamic.keeps(group))

    def _observe(
        self, state: TrainerState, metrics: Metrics, rounds: int, carried: int, kept: int, trained: int
    ) -> None:
        """The counts of dynamic sampling; the first step of a run that ends at `max_rounds` is announced."""
        assert self.dynamic is not None
        dropped = sum(not self._is_usable(group) for group in self.sampled)
        metrics.add("groups/rounds", float(rounds))
        metrics.add("groups/sampled", float(len(self.sampled)))
        metrics.add("groups/filtered", float(len(self.sampled) - dropped - (kept - carried)))
        metrics.add("groups/trained", float(trained))
        metrics.add("groups/surplus", float(kept - trained))
        if trained < self.prompts and not self.dynamic.announced:
            self.dynamic.announced = True
            log.warning(
                "step %d trains on %d groups instead of %d: more were not found in filter.max_rounds = %d rounds. "
                "Further steps like this one are counted by groups/trained alone",
                state.step + 1,
                trained,
                self.prompts,
                self.dynamic.max_rounds,
            )

    def _nothing_to_train_on(self, step: int) -> str:
        count = len(self.sampled)
        if self.dynamic is None or not any(map(self._is_usable, self.sampled)):
            return (
                f"step {step}: none of the {count} groups has the {self.min_valid} "
                "valid completions that an advantage needs. What went wrong with each is in rollouts/."
            )
        return (
            f"step {step}: filter.dynamic_sampling keeps none of the {count} groups that were sampled in "
            f"{self.dynamic.max_rounds} rounds (filter.max_rounds): {self._outcomes()}. They are in rollouts/. Where "
            "all are right, the policy has learned these prompts; where all are wrong, they are too hard for it"
        )

    def _outcomes(self) -> str:
        assert self.dynamic is not None
        correct = self.dynamic.correct
        if correct is None:
            return "the rewards within each are the same"
        right = sum(all(correct(score) for score in group.scores if score.valid) for group in self.sampled)
        wrong = sum(not any(correct(score) for score in group.scores) for group in self.sampled)
        return f"all completions are right in {right}, and none in {wrong}"


@dataclass
class Groups(Drawing):
    """The source of each step's groups, sampled and scored when the step begins, by the weights as they are.

    A context manager around the steps of a run. Subclasses collect earlier, or elsewhere.

    unfinished   the groups that were sampled for a step that failed
    """

    unfinished: Sequence[Group] = field(default=(), init=False)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *error: object) -> None:
        self.rest()

    @property
    def exact(self) -> bool:
        """The engine's statement: recorded log-probs are those of the weights that sampled, up to rounding."""
        return self.engine.exact

    def follow(self, weights: Weights, step: int) -> None:
        """Sample from `weights`, the policy's after `step` steps."""
        self.engine.follow(weights)

    def next(self, state: TrainerState, metrics: Metrics) -> Collected:
        """Return the groups of the step after `state`, with their rewards.

        Raises TrainingError: there is no group to train on.
        """
        collecting = self.collecting()
        self.unfinished = collecting.sampled
        return collecting.collect(state, metrics)

    def collecting(self) -> Collecting:
        """Return what collects the groups of one step."""
        return Collecting(**{each.name: getattr(self, each.name) for each in fields(Drawing)})

    def epoch(self, cursor: int) -> float:
        """Return how many times the data has been gone through at `cursor`."""
        return self.source.epoch(cursor)

    def worked(self, since: float = 0.0) -> float | None:
        """Return the seconds for which other processes have sampled, the mean over them, less `since`; None: none."""
        seconds = self.engine.worked()
        return None if seconds is None else seconds - since

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the collection: inside, engine and rewards may be used for something else, such as an evaluation."""
        yield

    def rest(self) -> None:
        """Give up what is being collected: no step follows for now."""

    def close(self) -> None:
        """Release what is held. Twice is allowed."""

    def save(self, folder: Path, step: int) -> Mapping[str, Any]:
        """Return the record for a checkpoint in `folder`: what the steps after `step` need next to the weights."""
        return {}

    def load(self, folder: Path, record: Mapping[str, Any], weights: Weights) -> None:
        """Restore what `save` wrote; `weights` are the policy's."""


@dataclass
class DemonstratedGroups(Groups):
    """Groups of demonstrations: `complete` gives the completion of a prompt of `source`."""

    complete: Callable[[Prompt], Completion] = field(kw_only=True)

    def __post_init__(self) -> None:
        self._version = 0

    @property
    def exact(self) -> bool:
        """True: there are no recorded log-probs that could differ."""
        return True

    def follow(self, weights: Weights, step: int) -> None:
        """Note the version of the weights that are trained; no engine samples from them."""
        self._version = weights.version

    def next(self, state: TrainerState, metrics: Metrics) -> Collected:
        """Return the next demonstrations, each as a group of one completion."""
        prompts, cursor = self.source.take(state.cursor, self.prompts)
        given = [replace(self.complete(prompt), policy_version=self._version) for prompt in prompts]
        groups = tuple(
            Group(prompt, (completion,), (Score(0.0),)) for prompt, completion in zip(prompts, given, strict=True)
        )
        observe_groups(metrics, groups, dropped=0, rewarded=False)
        return Collected(groups, groups, (), cursor, state.draw)
