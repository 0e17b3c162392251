"""The groups of a warm start: each prompt with the completion that the data gives for it; nothing is sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from oncurve.metrics import Metrics
from oncurve.models import Weights
from oncurve.trainer.groups.source import Groups
from oncurve.trainer.state import Collected, TrainerState
from oncurve.trainer.watching.observe import observe_groups
from oncurve.types import Completion, Group, Prompt, Score


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
