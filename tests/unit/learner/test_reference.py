"""A reference that follows the policy: copies, averages, what is kept of them, and what cannot follow."""

import copy
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from fakes.adapted import adapted
from fakes.architectures import architecture
from fakes.learning import carried_over, finished, make_learner, old_logprobs, with_reference
from fakes.tiny_policy import TinyLM, random_groups, tiny_model
from fakes.tolerance import assert_close
from oncurve.base.errors import ModelError
from oncurve.batching import collate
from oncurve.learner import AdapterReference, LearnerConfig, LocalLearner, ReferenceSettings
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models import CausalModel, wrap
from oncurve.models.generic import GenericModel

GROUPS = random_groups()
BATCH = collate(GROUPS)
PRECISIONS = {
    "float64": {"dtype": torch.float64},
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.float32, "compute_dtype": torch.bfloat16},
    "split": {"dtype": torch.float32, "compute_dtype": torch.bfloat16, "masters": "split"},
}
every_precision = pytest.mark.parametrize("precision", PRECISIONS)


def learner_of(precision: str, **settings: object) -> LocalLearner:
    return make_learner(**PRECISIONS[precision], **{"learning_rate": 0.05, "kl_coef": 0.1, **settings})


def moved_on(learner: LocalLearner) -> LocalLearner:
    """The learner after an update with a gradient."""
    assert not learner.update(finished(learner, GROUPS)).skipped
    return learner


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


@every_precision
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("estimator", ["k3", "full"])
def test_a_copy_computes_what_the_policy_does_and_the_kl_is_exactly_0(
    precision: str, tied: bool, estimator: str
) -> None:
    learner = moved_on(learner_of(precision, tied=tied, estimator=estimator))
    before = with_reference(learner, BATCH).ref_logprobs
    assert not torch.equal(before, old_logprobs(learner, BATCH))
    learner.move_reference(1.0)
    assert torch.equal(with_reference(learner, BATCH).ref_logprobs, old_logprobs(learner, BATCH))
    assert learner.reference.version == 1
    assert learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] == 0
    assert learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] > 0


@every_precision
@pytest.mark.parametrize("tied", [False, True])
def test_a_moving_average_is_the_plain_one_of_the_masters(precision: str, tied: bool) -> None:
    learner = learner_of(precision, tied=tied)
    plain = {name: tensor.to(torch.float64, copy=True) for name, tensor in learner.reference.state().items()}
    for _ in range(5):
        moved_on(learner).move_reference(0.3)
        for name, master in learner.optimizer.masters.items():
            plain[name] = 0.3 * master.double() + (1 - 0.3) * plain[name]
    state = learner.reference.state()
    assert state.keys() == plain.keys()
    for name, right in plain.items():
        assert state[name].dtype == (torch.float64 if precision == "float64" else torch.float32)
        assert_close(state[name], right, torch.float32)
    computed = dict(learner.reference.model.module.named_parameters())
    assert all(torch.equal(parameter, state[name].to(parameter.dtype)) for name, parameter in computed.items())


@pytest.mark.parametrize("precision", ["bfloat16", "split"])
def test_small_moves_are_not_lost_to_rounding(precision: str) -> None:
    learner = moved_on(learner_of(precision))
    before = copied(learner.reference.state())
    for _ in range(200):
        learner.move_reference(0.001)
    left = 0.999**200
    for name, master in learner.optimizer.masters.items():
        right = left * before[name].double() + (1 - left) * master.double()
        torch.testing.assert_close(learner.reference.state()[name].double(), right, rtol=0, atol=1e-5)
    computed = dict(learner.reference.model.module.named_parameters())
    assert any(not torch.equal(parameter, before[name]) for name, parameter in computed.items())


class Other(TinyLM):
    """The parameters of a TinyLM, and another computation."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (TinyLM(width=5), "'embedding.weight' is .*11, 5.*, the policy's .*11, 6"),
        (TinyLM(tied=True), "only one of them has the parameter 'out.weight'"),
        (TinyLM().half(), "is torch.float16, the policy's torch.float32"),
        (Other(), "it is a Other, the policy a TinyLM"),
    ],
    ids=["shape", "names", "dtype", "class"],
)
def test_a_reference_that_is_another_model_cannot_follow(given: nn.Module, said: str) -> None:
    learner = LearnerConfig().build(
        tiny_model(torch.float32), Clipped(), Regularizer(KLPenalty(coef=0.1)), reference=GenericModel(given)
    )
    before = copied(learner.reference.state())
    with pytest.raises(ModelError, match=said) as caught:
        learner.move_reference(1.0)
    assert "reference.every = 0" in str(caught.value)
    assert same(learner.reference.state(), before)
    assert learner.reference.version == 0


@pytest.mark.parametrize("wrong", [{"every": -1}, {"mixup_alpha": 0.0}, {"mixup_alpha": 1.5}, {"mixup": 0.5}])
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ReferenceSettings(**wrong)


ADAPTER_PRECISIONS = {
    "float64": (torch.float64, None, {}),
    "float32": (torch.float32, None, {}),
    "lean": (torch.float32, torch.bfloat16, {"masters": "split", "moments": "bfloat16"}),
}
every_adapter_precision = pytest.mark.parametrize("precision", ["float32", "lean"])


def policy(dtype: torch.dtype, trained: bool = False, seed: int = 0) -> CausalModel:
    return adapted(architecture("qwen3", dtype, seed), trained=trained)


def adapter_learner(
    precision: str = "float32",
    trained: bool = False,
    estimator: str = "k3",
    reference: CausalModel | None = None,
    seed: int = 0,
) -> LocalLearner:
    dtype, compute, settings = ADAPTER_PRECISIONS[precision]
    return LearnerConfig(learning_rate=0.05, **settings).build(
        policy(dtype, trained, seed),
        Clipped(),
        Regularizer(KLPenalty(coef=0.1, estimator=estimator)),
        dtype=compute,
        reference=reference,
    )


@every_adapter_precision
@pytest.mark.parametrize(("trained", "estimator"), [(False, "full"), (True, "k3")])
def test_the_kl_is_exactly_0_at_the_start_and_the_base_never_changes(
    precision: str, trained: bool, estimator: str
) -> None:
    learner = adapter_learner(precision, trained, estimator)
    base = copied(learner.optimizer.frozen)
    assert torch.equal(with_reference(learner, BATCH).ref_logprobs, old_logprobs(learner, BATCH))
    assert learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] == 0
    assert learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] > 0
    assert set(learner.optimizer.trained) == set(learner.model.adapter.parameters)
    assert all(torch.equal(parameter, base[name]) for name, parameter in learner.optimizer.frozen.items())
    assert not any(name.endswith(tuple(base)) for name in learner.optimizer.state())


def test_the_reference_is_the_base_model_and_stays_it() -> None:
    learner = adapter_learner()
    plain = LearnerConfig().build(wrap(architecture("qwen3")), Clipped(), Regularizer(KLPenalty(coef=0.1)))
    for _ in range(3):
        moved_on(learner)
    assert isinstance(learner.reference, AdapterReference)
    assert learner.reference.state() == {}  # no copy of anything
    assert_close(with_reference(learner, BATCH).ref_logprobs, old_logprobs(plain, BATCH), torch.float32)


def test_a_first_average_is_the_average_of_base_and_policy() -> None:
    """From the base, π_ref ← α π_θ + (1 - α) π_base is the policy's low-rank product times α: by merged weights."""
    learner = moved_on(adapter_learner("float64"))
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
    learner = moved_on(adapter_learner(precision, trained))
    for alpha in moves:
        learner.move_reference(alpha)
        moved_on(learner)
    resumed = adapter_learner(precision, trained)
    record = carried_over(learner, resumed, tmp_path)
    assert "frozen" not in record
    assert len(record["base"]) == 64
    for each in (learner, resumed):
        moved_on(each)
        each.move_reference(0.5)
    assert torch.equal(*(with_reference(each, BATCH).ref_logprobs for each in (learner, resumed)))
    ours, theirs = (each.optimizer.state() for each in (learner, resumed))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
