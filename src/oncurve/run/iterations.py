"""Iterative GRPO put together: what judges samples, what learns from them, and where it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from oncurve.data.judgements import Judgements, Preferences, StepLabels
from oncurve.errors import ConfigError
from oncurve.learner import Learner
from oncurve.learner.reward_model import Example, RewardLearner
from oncurve.models import LoadedModel
from oncurve.rewards import RewardSet
from oncurve.rewards.scoring import Locate
from oncurve.rollout import InProcessEngine, Policy
from oncurve.rollout.stopping import Detokenizer
from oncurve.run.config import RunConfig
from oncurve.steps import splitter_of, token_ends
from oncurve.trainer.iterative import Iterations
from oncurve.trainer.labelling import Labeller, RollOuts, judged_pairs, judged_steps
from oncurve.trainer.outer import ReferenceSchedule
from oncurve.trainer.replay import Replay
from oncurve.types import Group, LabelledSteps, PreferencePair, Score

__all__ = ["JudgedBy", "Kind", "Sources", "iterations", "labeller", "step_locator"]

Kind = Literal["preferences", "steps"]


@dataclass(frozen=True)
class Sources:
    """The parts of a run that samples and judgements come from."""

    engine: InProcessEngine
    rewards: RewardSet
    learner: Learner
    loaded: LoadedModel


def iterations(config: RunConfig, base: Path | None, sources: Sources, learner: RewardLearner) -> Iterations:
    """The outer loop of a run with `[iterative]`. Raises DataError: `history` cannot be read."""
    settings = config.iterative
    kind: Kind = "steps" if learner.classifier.head == "process" else "preferences"
    assert config.eval.judge is not None  # `check_complete` has looked
    label = labeller(config, kind, config.eval.judge, settings.roll_outs, sources)
    known = learner.fitting(_history(settings.history, kind, base))
    reference = ReferenceSchedule(settings.steps, 1.0, sources.learner)
    return Iterations(settings, reference, learner, label, Replay(known), config.run.seed)


@dataclass(frozen=True)
class JudgedBy:
    """Scores by one of a run's rewards alone, whatever its weight."""

    rewards: RewardSet
    judge: str

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the judge's word as the reward; not valid where it has none."""
        return [
            replace(group, scores=tuple(self._alone(score) for score in group.scores))
            for group in self.rewards.score(groups)
        ]

    def _alone(self, score: Score) -> Score:
        value = score.parts.get(self.judge)
        return Score(value or 0.0, value is not None, score.parts, score.fault, extras=score.extras)


def _history(path: str | None, kind: Kind, base: Path | None) -> Sequence[Example]:
    if path is None:
        return []
    source: Judgements = (StepLabels if kind == "steps" else Preferences)(path=path, eval_fraction=0.0)
    return source.read(base, key="iterative.history")[0]


def labeller(config: RunConfig, kind: Kind, judge: str, roll_outs: int, sources: Sources) -> Labeller:
    """How scored groups become examples. Raises ConfigError: roll-outs without a tokenizer."""
    if kind == "preferences":

        def pairs(groups: Sequence[Group]) -> list[PreferencePair]:
            return judged_pairs(groups, judge)

        return pairs
    if not roll_outs:

        def steps(groups: Sequence[Group]) -> list[LabelledSteps]:
            return judged_steps(groups, judge)

        return steps
    locate = step_locator(sources.loaded.tokenizer)
    if locate is None:
        raise ConfigError("roll-outs from the ends of steps need a tokenizer")
    split = splitter_of(next((reward.split for reward in config.rewards if hasattr(reward, "split")), "newline"))
    engine, longest = sources.engine, sources.loaded.model.longest_row
    rolled = RollOuts(engine, sources.rewards, judge, roll_outs, split, locate, config.rollout, longest)

    def rolled_out(groups: Sequence[Group]) -> list[LabelledSteps]:
        engine.follow(Policy(sources.learner.policy(), sources.learner.version))  # the weights as they are now
        return rolled(groups)

    return rolled_out


def step_locator(tokenizer: Any) -> Locate | None:
    """Finds the tokens that end the steps of a completion; None without a tokenizer."""
    if tokenizer is None:
        return None
    text_after = Detokenizer(tokenizer).after
    return lambda prompt, completion, ends: token_ends(ends, completion.text, completion.ids, text_after(prompt.ids))
