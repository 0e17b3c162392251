"""The parts around a run's trainer: its loop, the outer loop of iterative GRPO, and the evaluation of its policy.

How samples are labelled, the reward model that learns from them, and the replay buffer; and the scores of one verifier
alone, by which a run evaluates its policy as its settings have it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from oncurve.base.errors import ConfigError
from oncurve.base.output import urgent
from oncurve.config import RunConfig, to_tables
from oncurve.data import Demonstrations, PassRateOrder, PromptOrder, Prompts
from oncurve.evaluate import Evaluation, evaluate, part_is_1
from oncurve.learner import Learner
from oncurve.models import LoadedModel
from oncurve.report import answer_column, answer_of_row
from oncurve.reward_models import (
    Example,
    Iterations,
    LabelledSteps,
    Labeller,
    MonteCarloLabels,
    Preferences,
    Replay,
    RewardExamples,
    RewardLearner,
    StepLabels,
    scored_pairs,
    scored_steps,
)
from oncurve.rewards import DeferredScoring, Locate, RewardSet, verifier_of
from oncurve.rollout import Detokenizer, RolloutEngine
from oncurve.steps import splitter_of, token_ends
from oncurve.trainer import (
    Credit,
    DemonstratedGroups,
    DynamicSampling,
    EntropyControl,
    Groups,
    HeldOut,
    KLControl,
    LaggedGroups,
    OldPolicy,
    ReferenceSchedule,
    TrainerConfig,
)
from oncurve.types import Group, Score


def trainer_config(config: RunConfig, environment: Mapping[str, object] | None = None) -> TrainerConfig:
    """Return the loop's own numbers, from the sections they stand in."""
    return TrainerConfig(
        steps=config.run.steps,
        seed=config.run.seed,
        ppo_epochs=config.learner.ppo_epochs,
        minibatches=config.learner.minibatches,
        target_kl=config.learner.target_kl,
        old_policy=OldPolicy(
            single=config.updates_per_step == 1,
            recorded=config.old_logprobs == "rollout",
            correction=config.correction,
            top_entropy=config.filter.top_entropy,
        ),
        mask_truncated=config.filter.mask_truncated,
        checkpoint_every=config.checkpoint.every,
        held_out=HeldOut(config.eval.every, config.eval.at_start, config.checkpoint.best, config.eval.patience),
        grace_seconds=config.run.grace_seconds,
        max_minutes=config.run.max_minutes,
        environment=environment or {},
    )


def dynamic_sampling(config: RunConfig) -> DynamicSampling | None:
    """Return which groups a step trains on, by the verifier where there is one; None: on all that are usable."""
    settings = config.filter
    if not settings.dynamic_sampling:
        return None
    return DynamicSampling(settings.max_rounds, _correct(config), settings.mask_truncated)


def _correct(config: RunConfig) -> Callable[[Score], bool | None] | None:
    verifier = verifier_of(config.rewards, config.eval.verifier)
    return None if verifier is None else part_is_1(verifier)


def credit_of(config: RunConfig) -> Credit:
    """Return the components that make of rewards a weight and an advantage per token."""
    return Credit(config.advantage, config.loss_weights, KLControl(config.kl), EntropyControl(config.entropy))


def order_of(config: RunConfig, prompts: Prompts) -> PromptOrder:
    """Return the order in which a run takes its prompts."""
    if config.data.curriculum == "pass_rate":
        return PassRateOrder(prompts, config.run.seed, prompts.rows.numbers)
    return PromptOrder(prompts, config.run.seed, config.data.shuffle, prompts.mixture)


def groups_of(
    config: RunConfig,
    engine: RolloutEngine,
    rewards: RewardSet,
    prompts: Prompts,
    demonstrations: Demonstrations | None = None,
) -> Groups:
    """Return the source of groups, ahead of their step where other processes sample; `demonstrations` are groups of
    their own.
    """
    if demonstrations is not None:
        order = PromptOrder(demonstrations, config.run.seed, config.data.shuffle)
        return DemonstratedGroups(
            engine, rewards, order, config.data.prompts_per_step, 1, complete=demonstrations.completion
        )
    cluster, least = config.cluster.facts, config.advantage.min_valid_completions
    size, dynamic = config.rollout.group_size, dynamic_sampling(config)
    right = _correct(config) if config.data.curriculum == "pass_rate" else None
    given = (engine, rewards, order_of(config, prompts), config.data.prompts_per_step, size, least, dynamic, right)
    if not cluster.lag:
        return Groups(*given)
    return LaggedGroups(*given, lag=cluster.lag, ahead=cluster.workers > 0, steps=config.run.steps)


Kind = Literal["preferences", "steps"]


@dataclass(frozen=True)
class LabellingInputs:
    """The parts of a run that samples and their labels come from."""

    engine: RolloutEngine
    rewards: RewardSet
    learner: Learner
    loaded: LoadedModel


def iterations(config: RunConfig, base: Path | None, sources: LabellingInputs, learner: RewardLearner) -> Iterations:
    """Return the outer loop of a run with `[iterative]`. Raises DataError: `history` cannot be read."""
    settings = config.iterative
    kind: Kind = "steps" if learner.classifier.head == "process" else "preferences"
    assert config.eval.verifier is not None  # `check_complete` has refused None
    label = labeller(config, kind, config.eval.verifier, settings.continuations, sources)
    history = _history(settings.history, kind, base)
    known = learner.fitting(history)
    if len(known) < len(history):
        why = f"too long for {learner.classifier.max_length} tokens of the reward model, or without a label"
        urgent(
            f"oncurve: iterative.history: {len(history) - len(known)} of {len(history)} examples are left out, {why}"
        )
    reference = ReferenceSchedule(config.following, sources.learner)
    return Iterations(settings, reference, learner, label, Replay(known), config.run.seed)


@dataclass(frozen=True)
class ScoredBy:
    """Scores by one of a run's rewards alone, whatever its weight."""

    rewards: RewardSet
    verifier: str

    def begin(self, step: int = 0) -> DeferredScoring:
        """Return a scoring that begins when all groups are written."""
        return DeferredScoring(self.score)

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with the verifier's value as the reward; not valid where it has none."""
        return [
            replace(group, scores=tuple(self._alone(score) for score in group.scores))
            for group in self.rewards.score(groups)
        ]

    def _alone(self, score: Score) -> Score:
        value = score.parts.get(self.verifier)
        return Score(value or 0.0, value is not None, score.parts, score.fault, extras=score.extras)


def _history(path: str | None, kind: Kind, base: Path | None) -> Sequence[Example]:
    if path is None:
        return []
    source: RewardExamples = (StepLabels if kind == "steps" else Preferences)(path=path, eval_fraction=0.0)
    return source.read(base, key="iterative.history")[0]


def labeller(config: RunConfig, kind: Kind, verifier: str, continuations: int, sources: LabellingInputs) -> Labeller:
    """Return how scored groups become examples. Raises ConfigError: continuations without a tokenizer."""
    if kind == "preferences":
        return partial(scored_pairs, verifier=verifier)
    if not continuations:
        return partial(scored_steps, verifier=verifier)
    locate = step_locator(sources.loaded.tokenizer)
    if locate is None:
        raise ConfigError("continuations from the ends of steps need a tokenizer")
    split = splitter_of(next((reward.split for reward in config.rewards if hasattr(reward, "split")), "newline"))
    engine, longest = sources.engine, sources.loaded.model.longest_row
    label = MonteCarloLabels(engine, sources.rewards, verifier, continuations, split, locate, config.rollout, longest)

    def continued(groups: Sequence[Group]) -> list[LabelledSteps]:
        engine.follow(sources.learner.weights())  # the weights as they are now
        return label(groups)

    return continued


def step_locator(tokenizer: Any) -> Locate | None:
    """Find the tokens that end the steps of a completion; None without a tokenizer."""
    if tokenizer is None:
        return None
    text_after = Detokenizer(tokenizer).after
    return lambda prompt, completion, ends: token_ends(ends, completion.text, completion.ids, text_after(prompt.ids))


def evaluate_policy(
    engine: RolloutEngine, rewards: RewardSet, prompts: Prompts, config: RunConfig, n: int
) -> Evaluation:
    """Greedy, and n samples a prompt where n > 0, on all of `prompts`, with what the engine follows.

    `eval.verifier`, where it is set, decides alone: a reward model's scores of its own policy prove nothing. What is
    correct is decided by one reward (`verifier_of`), whatever its weight; without one it is not reported.
    """
    verifier = verifier_of(config.rewards, config.eval.verifier)
    temperature = config.eval.temperature or config.rollout.temperature
    longest = {"max_new_tokens": config.eval.max_new_tokens or config.rollout.max_new_tokens}
    return evaluate(
        engine,
        rewards if config.eval.verifier is None else ScoredBy(rewards, config.eval.verifier),
        [prompts[index] for index in range(len(prompts))],
        greedy=config.rollout.model_copy(update={"group_size": 1, "temperature": 0.0, **longest}),
        sampled=config.rollout.model_copy(update={"group_size": n, "temperature": temperature, **longest})
        if n
        else None,
        correct=None if verifier is None else part_is_1(verifier),
        verifier=verifier,
        seed=config.run.seed,
    )


LONGEST_TEXT = 8000
"""The most characters of a prompt and of a completion that are kept of an evaluation."""


def results_by_problem(evaluation: Evaluation, config: RunConfig) -> list[dict[str, Any]]:
    """Return what became of each problem, as `EvaluationFiles` writes it."""
    correct = None if evaluation.verifier is None else part_is_1(evaluation.verifier)
    named = answer_column(to_tables(config))
    found = []
    for greedy, sampled in zip_longest(evaluation.greedy, evaluation.sampled):
        prompt, reply, score = greedy.prompt, greedy.completions[0], greedy.scores[0]
        verdicts = [correct(each) for each in sampled.scores] if sampled is not None and correct is not None else []
        known = [right for right in verdicts if right is not None]
        answer, right = answer_of_row(prompt.columns, named), None if correct is None else correct(score)
        found.append(
            {
                "id": prompt.id,
                "prompt": prompt.text[:LONGEST_TEXT],
                "answer": None if answer is None else answer[:LONGEST_TEXT],
                "reply": reply.text[:LONGEST_TEXT],
                "ended": reply.ended,
                "reward": score.reward if score.valid else None,
                "fault": score.fault,
                "right": None if right is None else bool(right),
                "samples": [sum(known), len(known)] if known else None,
            }
        )
    return found
