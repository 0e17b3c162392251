import pytest
import torch
from torch import nn

from fakes.tolerance import about, assert_close
from oncurve.errors import CheckpointError
from oncurve.learner import MasterAdamW, scheduled_rate


def small_net(tied: bool = False) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False))
    for parameter in net.parameters():
        parameter.data.normal_(0.0, 1.0, generator=generator)
    if tied:
        net[2].weight = net[0].weight
    return net


def backward(net: nn.Module, scale: float = 1.0) -> None:
    (net(torch.tensor([[1, 2, 3]])).float().square().sum() * scale).backward()


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.85355339, 0.5, 0.14644661, 0.0]),
    ],
)
def test_schedules_warm_up_then_reach_their_end_at_the_last_update(schedule: str, rates: list[float]) -> None:
    given = [scheduled_rate(1.0, update, 6, 2, schedule) for update in range(7)]
    assert given == pytest.approx(rates)


def test_updates_too_small_for_bfloat16_are_not_lost() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    optimizer = MasterAdamW(net, torch.bfloat16)
    for _ in range(100):
        net(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimizer.step(1e-4, optimizer.gradient_norm())
    assert float(net.weight.detach()) == pytest.approx(0.99, abs=2e-3)
    assert float(optimizer.masters["weight"].detach()) == pytest.approx(0.99, abs=1e-5)


def test_a_step_is_torchs_adamw_with_its_clipping() -> None:
    ours, theirs = small_net(), small_net()
    optimizer = MasterAdamW(ours, betas=(0.8, 0.9), epsilon=1e-6, weight_decay=0.1)
    judge = torch.optim.AdamW(theirs.parameters(), lr=0.05, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    for _ in range(3):
        judge.zero_grad()
        backward(theirs)
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        judge.step()
        backward(ours)
        assert optimizer.gradient_norm() == about(float(norm))
        optimizer.step(0.05, optimizer.gradient_norm(), 1.0)
    for given, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(given, right)


def test_a_parameter_without_gradient_takes_part_with_gradient_zero() -> None:
    net = small_net()
    optimizer = MasterAdamW(net, weight_decay=0.5)
    before = net[2].weight.detach().clone()
    optimizer.step(0.1, optimizer.gradient_norm())
    torch.testing.assert_close(net[2].weight.detach(), before * 0.95)


def run(optimizer: MasterAdamW, net: nn.Module, steps: int) -> None:
    for _ in range(steps):
        backward(net, 1.0 + optimizer.steps)
        optimizer.step(0.01, optimizer.gradient_norm(), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_loaded_state_goes_on_bit_for_bit(dtype: torch.dtype, steps: int) -> None:
    net = small_net()
    optimizer = MasterAdamW(net, dtype, weight_decay=0.01)
    run(optimizer, net, steps)
    saved = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    run(optimizer, net, 2)

    other = small_net(tied=False)
    nn.init.ones_(other[1].weight)
    resumed = MasterAdamW(other, dtype, weight_decay=0.01)
    run(resumed, other, 1)
    resumed.load_state(saved, steps)
    run(resumed, other, 2)
    ours, theirs = optimizer.state(), resumed.state()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("wrong", ["missing", "extra", "shape", "dtype"])
def test_the_state_of_another_model_is_refused_and_changes_nothing(wrong: str) -> None:
    net = small_net()
    optimizer = MasterAdamW(net)
    run(optimizer, net, 1)
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    kept = net[1].weight.detach().clone()
    state["master.1.weight"] = state["master.1.weight"] + 1
    if wrong == "missing":
        del state["moment1.2.weight"]
    elif wrong == "extra":
        state["master.7.weight"] = torch.zeros(1)
    elif wrong == "shape":
        state["master.2.weight"] = torch.zeros(2, 2)
    else:
        state["moment2.2.weight"] = state["moment2.2.weight"].double()
    with pytest.raises(CheckpointError, match=r"weight"):
        optimizer.load_state(state, 1)
    assert torch.equal(net[1].weight, kept)
    assert optimizer.steps == 1
