"""One update's gradient does not depend on how the batch is cut, ordered, or padded with rows that teach nothing."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fakes.learning import OBJECTIVES, finished, gradient, make_learner, relative_error
from fakes.tiny_policy import REWARDS, random_groups, tiny_model
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import OBJECTIVE_KINDS, KLPenalty, Regularizer

WHOLE = 10_000


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 60), size=st.integers(2, 5), order=st.randoms())
def test_gradient_of_any_groups_survives_any_cut_in_float32(seed: int, budget: int, size: int, order: object) -> None:
    groups = random_groups(count=3, size=size, seed=seed)
    turned = list(groups)
    order.shuffle(turned)
    whole = make_learner(dtype=torch.float32, tokens_per_micro_batch=WHOLE)
    cut = make_learner(dtype=torch.float32, tokens_per_micro_batch=budget)
    right = gradient(whole, finished(whole, groups))
    assert relative_error(gradient(cut, finished(cut, turned)), right) <= 1e-5


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_rows_left_out_move_nothing(kind: str) -> None:
    skipping = OBJECTIVE_KINDS[kind]
    computing = type("Computed", (skipping,), {"zero_gradient_at_zero_advantage": False})
    alive, dead = random_groups(rewards=REWARDS), random_groups(rewards=[[1.0] * 4] * 3)
    results = []
    for objective in (skipping(), computing()):
        model = tiny_model()
        regularizer = Regularizer(KLPenalty(coef=0.0))
        config = LearnerConfig(learning_rate=0.05, weight_decay=0.01)
        learner = LocalLearner(config, model, objective, regularizer)
        for groups in (alive, dead, alive, dead):
            result = learner.update(finished(learner, groups))
            assert not result.skipped
        assert learner.version == 4
        results.append((torch.cat([p.detach().flatten() for p in model.module.parameters()]), result.metrics.result()))
    (skipped, said), (computed, said_too) = results
    torch.testing.assert_close(skipped, computed, rtol=0, atol=1e-12)
    for key in ("policy/loss", "optim/grad_norm", "policy/objective_loss", "optim/updates"):
        assert said[key] == pytest.approx(said_too[key], abs=1e-12)
