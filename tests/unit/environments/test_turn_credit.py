"""Rewards of turns are steps: the golden numbers, and the policy gradient by enumeration of all episodes."""

import itertools

import pytest
import torch

from oncurve.advantages import ProcessAdvantage
from oncurve.batching import collate
from oncurve.rewards import EnvironmentReward, RewardSet
from oncurve.types import Completion, Group, Prompt, Score, Turn


def episode(index, rewards, outcome=None, ids=(5, 6, 7, 8, 9)):
    """Two turns of two tokens and one, with two tokens of context between them."""
    turns = (
        Turn("assistant", 0, 2, "a", rewards[0]),
        Turn("tool", 2, 4, "b"),
        Turn("assistant", 4, 5, "c", rewards[1]),
    )
    trained = (True, True, False, False, True)
    return Completion(ids, "a\nc", (0.0,) * 5, "environment", index, 0, trained, turns, outcome=outcome)


def scored(*completions, weight=1.0):
    with RewardSet.build([EnvironmentReward(weight=weight)]) as rewards:
        (group,) = rewards.score([Group(Prompt(0, "", (1,)), completions)])
    return group


def test_rewards_of_turns_have_the_golden_advantages():
    group = scored(episode(0, (0.0, 1.0)), episode(1, (0.0, 0.0)))
    assert [score.reward for score in group.scores] == [1.0, 0.0]
    batch = collate([group])
    advantages = ProcessAdvantage()(batch)[batch.loss_mask].view(2, 3)
    assert advantages.flatten().tolist() == pytest.approx([1.0, 1.0, 1.5, -1.0, -1.0, -0.5], abs=1e-5)
    assert not bool(batch.loss_mask[:, 2:4].any())


def test_the_outcome_is_added_at_the_last_turn_and_weights_count():
    group = scored(episode(0, (0.5, None), outcome=2.0), episode(1, (None, None), outcome=-1.0), weight=2.0)
    assert [score.reward for score in group.scores] == [5.0, -2.0]
    assert (group.scores[0].step_ends, group.scores[0].step_rewards) == ((1, 4), (1.0, 4.0))
    assert group.scores[1].step_ends == ()  # no turn has a reward: the outcome is that of the whole


def test_an_episode_with_a_fault_is_left_out_and_never_0():
    broken = Completion((5,), "", (0.0,), "fault", 1, 0, (False,), fault="environment: exception: it is broken")
    group = scored(episode(0, (0.0, 1.0)), broken)
    assert [score.valid for score in group.scores] == [True, False]
    assert group.scores[1].fault == broken.fault


def test_gradient_of_turn_credit_is_that_of_the_expected_reward():
    """Two turns over three tokens, a reply that depends on the first; every path counts by its probability."""
    random = torch.Generator().manual_seed(1)
    first = torch.randn(3, generator=random, dtype=torch.float64, requires_grad=True)
    second = torch.randn(3, 3, generator=random, dtype=torch.float64, requires_grad=True)
    reward_1, reward_2 = torch.rand(3, dtype=torch.float64, generator=random), torch.rand(3, 3, dtype=torch.float64)
    paths = list(itertools.product(range(3), range(3)))
    log_1, log_2 = first.log_softmax(0), second.log_softmax(1)  # the reply to a is the row a of `second`
    chances = torch.stack([(log_1[a] + log_2[a, b]).exp() for a, b in paths])
    expected = sum(p * float(reward_1[a] + reward_2[a, b]) for p, (a, b) in zip(chances, paths, strict=True))
    right = torch.autograd.grad(expected, [first, second], retain_graph=True)
    rows = [
        (
            Completion((a, a, b), "", (0.0,) * 3, "environment", number, 0, (True, False, True)),
            Score(0.0, step_ends=(0, 2), step_rewards=(float(reward_1[a]), float(reward_2[a, b]))),
        )
        for number, (a, b) in enumerate(paths)
    ]
    batch = collate([Group(Prompt(0, "", (1,)), *zip(*rows, strict=True))])
    advantages = ProcessAdvantage(scale="none")(batch)
    surrogate = sum(
        p.detach() * (advantages[row, 0] * log_1[a] + advantages[row, 2] * log_2[a, b])
        for row, (p, (a, b)) in enumerate(zip(chances, paths, strict=True))
    )
    for given, wanted in zip(torch.autograd.grad(surrogate, [first, second]), right, strict=True):
        torch.testing.assert_close(given, wanted, rtol=1e-10, atol=1e-12)
