import itertools
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from fakes.architectures import architecture
from fakes.learning import finished
from fakes.tables import table
from fakes.tiny_policy import random_groups
from oncurve.base.errors import CheckpointError
from oncurve.learner import LearnerConfig, LocalLearner, MasterAdamW, scheduled_rate
from oncurve.learner.optimizer import adamw
from oncurve.learner.optimizer.masters import SplitMaster
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models import CausalModel, wrap


@pytest.mark.parametrize(("schedule", "rates"), table("optim", "schedules"))
def test_schedules_warm_up_then_reach_their_end_at_the_last_update(schedule: str, rates: list[float]) -> None:
    given = [scheduled_rate(1.0, update, 6, 2, schedule) for update in range(7)]
    assert given == pytest.approx(rates)


@pytest.mark.parametrize("wrong", ["missing", "extra", "shape", "dtype"])
def test_the_state_of_another_model_is_refused_and_changes_nothing(wrong: str) -> None:
    optimizer, module = run_of("float32", "float32", 1)
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    kept = module.parts[1].detach().clone()
    state["master.parts.1"] = state["master.parts.1"] + 1
    if wrong == "missing":
        del state["moment1.parts.2"]
    elif wrong == "extra":
        state["master.parts.7"] = torch.zeros(1)
    elif wrong == "shape":
        state["master.parts.2"] = torch.zeros(2, 2)
    else:
        state["moment2.parts.2"] = state["moment2.parts.2"].double()
    with pytest.raises(CheckpointError, match=r"parts\.[27]"):
        optimizer.load_state(state, 1)
    assert torch.equal(module.parts[1], kept)
    assert optimizer.steps == 1


COMBINATIONS = list(itertools.product(["float32", "split"], ["float32", "bfloat16"]))


@pytest.fixture(params=[7, 64, 2**17])
def slice_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(adamw, "SLICE", request.param)
    return request.param


def net(seed: int = 0) -> nn.Module:
    module = nn.Module()
    generator = torch.Generator().manual_seed(seed)
    shapes = [(17, 3), (5,), (64, 8), (1,)]
    module.parts = nn.ParameterList([nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes])
    return module


def give_gradients(module: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 10.0 ** (step % 3 - 2)


def train(optimizer: MasterAdamW, module: nn.Module, steps: range) -> None:
    for step in steps:
        give_gradients(module, step)
        optimizer.step(0.01, optimizer.gradient_norm(), 1.0)


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(torch.int32)


def awkward() -> Tensor:
    """Values of every sign and size, ties between two bfloat16 neighbours, zeros, subnormals, and their neighbours."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, 0x7F000000, (4000,), generator=generator, dtype=torch.int64).to(torch.int32)
    ties = (patterns & ~0xFFFF) | 0x8000
    few = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x10000, 0x007FFFFF, 0x3F800000], dtype=torch.int32)
    positive = torch.cat([patterns, ties, ties - 1, ties + 1, few]).view(torch.float32)
    return torch.cat([positive, -positive])


def test_the_two_halves_hold_every_bit_of_the_master() -> None:
    exact = awkward()
    parameter = nn.Parameter(exact.bfloat16())
    master = SplitMaster(parameter, exact)
    assert torch.equal(bits(master.whole()), bits(exact))
    assert {kind: tensor.dtype for kind, tensor in master.stored().items()} == {
        "high": torch.bfloat16,
        "low": torch.int16,
    }


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_split_masters_are_trained_to_the_same_bits_as_whole_ones(slice_size: int, moments: str) -> None:
    modules = [net(), net()]
    whole, split = (
        MasterAdamW(module, torch.bfloat16, weight_decay=0.1, masters=masters, moments=moments)
        for module, masters in zip(modules, ("float32", "split"), strict=True)
    )
    for optimizer, module in zip((whole, split), modules, strict=True):
        train(optimizer, module, range(6))
    for name in whole.masters:
        assert torch.equal(bits(whole.masters[name]), bits(split.masters[name]))
        tie = (bits(whole.masters[name]) & 0xFFFF) == 0x8000
        assert torch.equal(whole.parameters[name][~tie], split.parameters[name][~tie])


def test_slices_are_torchs_own_adamw_to_the_bit(slice_size: int) -> None:
    ours, theirs = net(), net()
    optimizer = MasterAdamW(ours, betas=(0.8, 0.95), epsilon=1e-6, weight_decay=0.1)
    theirs_optimizer = torch.optim.AdamW(
        theirs.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, fused=True
    )
    for step in range(4):
        for module in (ours, theirs):
            give_gradients(module, step)
        optimizer.step(0.01, optimizer.gradient_norm())
        theirs_optimizer.step()
    for given, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        if slice_size == 2**17:
            assert torch.equal(given, right)
        torch.testing.assert_close(given, right, rtol=1e-5, atol=1e-8)  # the tails of slices are not vectorised


def test_a_second_moment_in_bfloat16_does_not_stall() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(4096))
    optimizer = MasterAdamW(module, torch.bfloat16, moments="bfloat16")
    for _ in range(300):
        module.weight.grad = torch.ones(4096)
        optimizer.step(0.0, 64.0)
    exact, nearest = 1 - 0.999**300, torch.tensor(0.0, dtype=torch.bfloat16)
    for _ in range(300):
        nearest = (nearest.float() * 0.999 + 0.001).bfloat16()
    assert float(optimizer.state()["moment2.weight"].double().mean()) == pytest.approx(exact, rel=2e-3)
    assert float(nearest) < 0.97 * exact  # what rounding to the nearest would have had


def run_of(masters: str, moments: str, steps: int) -> tuple[MasterAdamW, nn.Module]:
    module = net()
    optimizer = MasterAdamW(module, torch.bfloat16, weight_decay=0.01, masters=masters, moments=moments)
    train(optimizer, module, range(steps))
    return optimizer, module


@pytest.mark.parametrize(("masters", "moments"), COMBINATIONS)
@pytest.mark.parametrize("steps", [0, 3])
def test_every_combination_goes_on_bit_for_bit_from_its_state(masters: str, moments: str, steps: int) -> None:
    optimizer, module = run_of(masters, moments, steps)
    saved = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    train(optimizer, module, range(steps, steps + 3))
    resumed, other = run_of(masters, moments, 1)
    resumed.load_state(saved, steps)
    train(resumed, other, range(steps, steps + 3))
    ours, theirs = optimizer.state(), resumed.state()
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name].view(torch.uint8), theirs[name].view(torch.uint8)), name
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


def test_a_frozen_parameter_is_rounded_once_and_never_stepped() -> None:
    module = net()
    given = module.parts[0].requires_grad_(False).clone()
    optimizer = MasterAdamW(module, torch.bfloat16, weight_decay=0.5)
    train(optimizer, module, range(1))
    assert optimizer.trained == ["parts.1", "parts.2", "parts.3"]
    assert list(optimizer.frozen) == ["parts.0"]
    assert torch.equal(module.parts[0], given.bfloat16())
    assert not any(name.endswith("parts.0") for name in optimizer.state())
    assert torch.equal(optimizer.masters["parts.0"], given.bfloat16().float())
    assert {master.dtype for master in optimizer.masters.values()} == {torch.float32}


def learner_of(model: CausalModel, dtype: torch.dtype, **settings: object) -> LocalLearner:
    config = LearnerConfig(learning_rate=0.05, max_grad_norm=0.0, **settings)
    return config.build(model, Clipped(), Regularizer(KLPenalty(coef=0.1)), temperature=0.7, dtype=dtype)


def small_llama(frozen: Sequence[str] = ()) -> CausalModel:
    model = wrap(architecture("llama"))
    for name, parameter in model.module.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frozen", [("embed_tokens",), ("lm_head",), ("embed_tokens", "layers.0", "norm")])
def test_the_other_weights_are_trained_to_the_bits_of_a_gradient_of_zero(
    frozen: tuple[str, ...], dtype: torch.dtype
) -> None:
    learner, twin = learner_of(small_llama(frozen), dtype), learner_of(small_llama(), dtype)
    still = list(learner.optimizer.frozen)
    assert still
    for seed in range(3):
        batch = finished(learner, random_groups(seed=seed))
        assert not learner.update(batch).skipped
        accumulated = twin.accumulate(batch)
        for name in still:
            twin.optimizer.gradients()[name].zero_()
        twin.apply(accumulated)
    ours, theirs = (dict(one.weights().local().module.named_parameters()) for one in (learner, twin))
    moved = {name: not torch.equal(ours[name], learner.reference.state()[name]) for name in ours}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {name for name in moved if not moved[name]} == set(still)
