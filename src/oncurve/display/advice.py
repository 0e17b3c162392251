"""What a row of zeros means, said once, in place of the zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["explain_zero_reward"]

_NO_SIGNAL = (
    "GRPO learns only from differences between completions of one prompt; where all rewards of a group are the same, "
    "every advantage is 0 and so is the gradient. "
)


def explain_zero_reward(history: Sequence[Mapping[str, float]], steps: int = 3) -> str | None:
    """Why nothing is being learned and what to do, if that has been so for the last `steps` steps; else None.

    `history` holds each step's metrics in order; `reward` and `constant_groups` are looked at. Two cases: all rewards
    are 0 (the model never solves the task), and rewards that are not 0 but the same within every group.
    """
    recent = list(history)[-steps:]
    if len(recent) < steps or not all(line.get("constant_groups", 0.0) == 1.0 for line in recent):
        return None
    rewards = [line["reward"] for line in recent if "reward" in line]
    if len(rewards) < steps:
        return None
    if all(reward == 0.0 for reward in rewards):
        return (
            f"For {steps} steps every reward has been 0: no completion solved its prompt, not even by chance. "
            + _NO_SIGNAL
            + "More of the same will not change this. What helps, in this order:\n"
            "  1. read some completions in rollouts/: if right answers are there, the reward does not recognise them;\n"
            "  2. easier prompts, some of which the model solves now and then (oncurve eval prints pass@k);\n"
            "  3. a reward with partial credit, for the form of the answer or for steps on the way to it;\n"
            "  4. a larger or better trained model, or a larger rollout.group_size."
        )
    return (
        f"For {steps} steps the rewards within every group have been the same (mean {rewards[-1]:.3g}). "
        + _NO_SIGNAL
        + "What helps, in this order:\n"
        "  1. read some completions in rollouts/: if they are all alike, raise rollout.temperature;\n"
        "  2. if all are right, the prompts are too easy: harder ones, or the work is done;\n"
        "  3. a finer reward, or a larger rollout.group_size."
    )
