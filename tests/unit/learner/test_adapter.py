"""A learner whose policy has an adapter: what is trained, what the reference is, what a checkpoint holds."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes.adapted import adapted
from fakes.architectures import architecture
from fakes.learning import carried_over, finished, old_logprobs, with_reference
from fakes.tiny_policy import random_groups
from fakes.tolerance import assert_close
from oncurve.batching import collate
from oncurve.learner import (
    ActorCritic,
    AdapterReference,
    CriticConfig,
    LearnerConfig,
    LocalLearner,
)
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models import CausalModel, wrap

GROUPS = random_groups()
BATCH = collate(GROUPS)
PRECISIONS = {
    "float64": (torch.float64, None, {}),
    "float32": (torch.float32, None, {}),
    "lean": (torch.float32, torch.bfloat16, {"masters": "split", "moments": "bfloat16"}),
}
every_precision = pytest.mark.parametrize("precision", ["float32", "lean"])


def policy(dtype: torch.dtype, trained: bool = False, seed: int = 0) -> CausalModel:
    return adapted(architecture("qwen3", dtype, seed), trained=trained)


def learner_of(
    precision: str = "float32",
    trained: bool = False,
    estimator: str = "k3",
    reference: CausalModel | None = None,
    seed: int = 0,
) -> LocalLearner:
    dtype, compute, settings = PRECISIONS[precision]
    return LearnerConfig(learning_rate=0.05, **settings).build(
        policy(dtype, trained, seed),
        Clipped(),
        Regularizer(KLPenalty(coef=0.1, estimator=estimator)),
        dtype=compute,
        reference=reference,
    )


def moved_on(learner: LocalLearner) -> LocalLearner:
    assert not learner.update(finished(learner, GROUPS)).skipped
    return learner


def of_base(learner: LocalLearner) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in learner.optimizer.frozen.items()}


@every_precision
@pytest.mark.parametrize(("trained", "estimator"), [(False, "full"), (True, "k3")])
def test_the_kl_is_exactly_0_at_the_start_and_the_base_never_changes(
    precision: str, trained: bool, estimator: str
) -> None:
    learner = learner_of(precision, trained, estimator)
    base = of_base(learner)
    assert torch.equal(with_reference(learner, BATCH).ref_logprobs, old_logprobs(learner, BATCH))
    assert learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] == 0
    assert learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] > 0
    assert set(learner.optimizer.trained) == set(learner.model.adapter.parameters)
    assert all(torch.equal(parameter, base[name]) for name, parameter in learner.optimizer.frozen.items())
    assert not any(name.endswith(tuple(base)) for name in learner.optimizer.state())


def test_the_reference_is_the_base_model_and_stays_it() -> None:
    learner = learner_of()
    plain = LearnerConfig().build(wrap(architecture("qwen3")), Clipped(), Regularizer(KLPenalty(coef=0.1)))
    for _ in range(3):
        moved_on(learner)
    assert isinstance(learner.reference, AdapterReference)
    assert learner.reference.state() == {}  # no copy of anything
    assert_close(with_reference(learner, BATCH).ref_logprobs, old_logprobs(plain, BATCH), torch.float32)


def test_a_first_average_is_the_average_of_base_and_policy() -> None:
    """From the base, π_ref ← α π_θ + (1 - α) π_base is the policy's low-rank product times α: by merged weights."""
    learner = moved_on(learner_of("float64"))
    learner.move_reference(0.3)
    merged = learner.model.adapter.merged()
    plain = architecture("qwen3", torch.float64)
    averaged = copy.deepcopy(plain)
    with torch.no_grad():
        for name, parameter in averaged.named_parameters():
            parameter.lerp_(merged[name], 0.3)
    twin = LearnerConfig().build(wrap(averaged), Clipped(), Regularizer(KLPenalty(coef=0.0)))
    assert_close(with_reference(learner, BATCH).ref_logprobs, old_logprobs(twin, BATCH), torch.float64)


@pytest.mark.parametrize(
    ("precision", "moves", "trained"),
    [("lean", [], False), ("float32", [1.0], False), ("lean", [0.5, 0.5], False), ("lean", [0.5], True)],
)
def test_a_saved_learner_goes_on_bit_for_bit(precision: str, moves: list[float], trained: bool, tmp_path: Path) -> None:
    learner = moved_on(learner_of(precision, trained))
    for alpha in moves:
        learner.move_reference(alpha)
        moved_on(learner)
    resumed = learner_of(precision, trained)
    record = carried_over(learner, resumed, tmp_path)
    assert "frozen" not in record
    assert len(record["base"]) == 64
    for each in (learner, resumed):
        moved_on(each)
        each.move_reference(0.5)
    assert torch.equal(*(with_reference(each, BATCH).ref_logprobs for each in (learner, resumed)))
    ours, theirs = (each.optimizer.state() for each in (learner, resumed))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_critic_of_its_own_is_a_second_adapter_on_the_same_base(tmp_path: Path) -> None:
    def pair() -> ActorCritic:
        return CriticConfig(learning_rate=1e-2).build(learner_of())

    both = pair()
    mine = both.actor.optimizer.frozen
    theirs = both.critic.optimizer.frozen
    assert {id(parameter) for parameter in theirs.values()} == {id(parameter) for parameter in mine.values()}
    trained = [both.critic.optimizer.parameters[name] for name in both.critic.optimizer.trained]
    own = {id(parameter) for parameter in both.actor.model.adapter.parameters.values()}
    assert not own & {id(parameter) for parameter in trained}
    assert sum(parameter.numel() for parameter in trained) == both.actor.optimizer.trained_count + 32 + 1  # its head
    record = carried_over(both, pair(), tmp_path)
    assert "base" in record["critic"]
