"""Each preset makes a tiny policy write what it is rewarded for."""

from collections.abc import Callable

import pytest
import torch

import oncurve
from fakes.tiny_policy import VOCABULARY, TinyLM

PRESETS = ["grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gdpo", "maxrl", "opo", "passk", "dapo"]


def rewards_of(longest: int) -> list[Callable[..., float]]:
    """Closures, which run in this process: a worker would import this file."""

    def echoed(completion_ids: list[int], target: int) -> float:
        return float(target in completion_ids[: longest + 1])

    def short(completion_ids: list[int]) -> float:
        return float(len(completion_ids) <= longest)

    return [echoed, short]


CASES = [
    *(pytest.param(preset, {}, torch.float32, marks=[pytest.mark.slow] * (preset != "grpo")) for preset in PRESETS),
    ("grpo", {"minibatches": 4}, torch.bfloat16),
]


@pytest.mark.parametrize(("preset", "learner", "dtype"), CASES)
def test_a_preset_teaches_a_tiny_policy(preset: str, learner: dict[str, int], dtype: torch.dtype) -> None:
    model = TinyLM(width=24, seed=3).to(dtype)
    for parameter in model.parameters():
        parameter.data.mul_(0.4)  # near uniform: every token is tried
    rewards: list[float] = []
    run = oncurve.train(
        model=model,
        data=[{"prompt": [token], "target": token} for token in range(VOCABULARY)],
        reward=rewards_of(2),
        preset=preset,
        steps=25,
        settings={
            "rollout": {"group_size": 8, "max_new_tokens": 3},
            "data": {"prompts_per_step": VOCABULARY},
            "learner": {"learning_rate": 0.02, **learner},
        },
        on_step=lambda result: rewards.append(result.metrics["rewards/echoed"]),
    )
    run.close()
    assert not torch.tensor(rewards).isnan().any()
    assert sum(rewards[-3:]) > 1.5 * sum(rewards[:3]), rewards
