"""The early stop of a step's updates: which update ends them, and that the others leave no trace."""

import pytest
import torch

from fakes.loops import make_loop
from oncurve.losses import OBJECTIVE_KINDS, has_importance_ratio
from oncurve.trainer import Trainer
from oncurve.types import TokenStats, TrainBatch


def steps_of(loop: Trainer) -> list[float]:
    """KL(π_old || π_θ) that each update of one step finds, by way of what it reports."""
    found, update = [], loop.learner.update

    def watched(minibatch):
        result = update(minibatch)
        found.append(result.metrics.result()["policy/kl_old"])
        return result

    loop.learner.update = watched
    return found


def weights(loop: Trainer) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in loop.learner.optimizer.masters.values()]


def make(epochs: int, minibatches: int = 1, **config: object) -> Trainer:
    return make_loop(config={"ppo_epochs": epochs, "minibatches": minibatches, **config}, learning_rate=0.02)


def test_the_updates_after_one_that_is_too_far_are_left_out_and_nothing_else_changes() -> None:
    free = make(6)
    found = steps_of(free)
    result = free.step()
    assert "optim/updates_left_out" not in result.metrics
    assert found[0] == 0
    assert found == sorted(set(found))
    for made in (2, 4):  # updates 1 to `made` are made: the last of them is the first to find a KL above the target
        stopped, short = make(6, target_kl=(found[made - 2] + found[made - 1]) / 2), make(made)
        metrics = stopped.step().metrics
        short.step()
        assert metrics["optim/updates"] == made
        assert metrics["optim/updates_left_out"] == 6 - made
        assert all(map(torch.equal, weights(stopped), weights(short)))
        assert stopped.state.step == 1


def test_minibatches_count_and_a_target_that_is_never_reached_leaves_none_out() -> None:
    loop = make(2, minibatches=8, target_kl=1e9)  # three groups make three minibatches
    metrics = loop.step().metrics
    assert (metrics["optim/updates"], metrics["optim/updates_left_out"]) == (6, 0)


@pytest.mark.parametrize("kind", [kind for kind, made in OBJECTIVE_KINDS.items() if has_importance_ratio(made())])
def test_the_kl_of_every_objective_is_that_of_its_tokens(kind: str) -> None:
    """A target in nats per token must mean the same where the ratio in the loss is that of a whole completion."""
    ratios = torch.tensor([[1.5, 0.5, 1.25], [0.8, 2.0, 7.0]], dtype=torch.float64)
    old = torch.full_like(ratios, -1.5)
    batch = TrainBatch(
        completion_ids=torch.zeros(2, 3, dtype=torch.int64),
        lengths=torch.tensor([3, 3]),
        loss_mask=torch.tensor([[True, True, True], [True, True, False]]),
        valid=torch.tensor([True, True]),
        group_ids=torch.tensor([0, 0]),
        prompts=(torch.tensor([1]),),
        rewards=torch.zeros(2),
        old_logprobs=old,
        rollout_logprobs=old,
        advantages=torch.tensor([[1.0], [-1.0]]).expand(2, 3),
    )
    found = OBJECTIVE_KINDS[kind]()(TokenStats(old + ratios.log()), batch).stats["policy/kl_old"][batch.loss_mask]
    torch.testing.assert_close(found, (ratios - 1 - ratios.log())[batch.loss_mask])
