"""The evaluation of a policy as a run's settings have it."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from oncurve.config import RunConfig, to_tables
from oncurve.data import Prompts
from oncurve.evaluate import Evaluation, evaluate, part_is_1
from oncurve.report import answer_column, answer_of_row
from oncurve.rewards import RewardSet, verifier_of
from oncurve.rollout import RolloutEngine
from oncurve.run.iterations import ScoredBy


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
