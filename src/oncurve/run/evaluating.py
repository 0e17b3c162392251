"""The evaluation of a policy as a run's settings have it."""

from __future__ import annotations

from oncurve.config import RunConfig
from oncurve.data import Prompts
from oncurve.evaluate import Evaluation, evaluate, part_is_1
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
