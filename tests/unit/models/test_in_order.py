"""Gradients that a GPU adds up in a fixed order: the same values, asked for in torch's deterministic mode."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from oncurve.machine import compiled
from oncurve.machine.in_order import differentiated_in_order, lookups_in_order
from oncurve.models.attention.packed_rows import sdpa


class Modes(TorchDispatchMode):
    """Whether torch's deterministic mode was on, by operation."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.seen[operation.overloadpacket.__name__] = torch.are_deterministic_algorithms_enabled()
        return operation(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """What is done on a GPU is done on this device."""
    monkeypatch.setattr(compiled, "on_gpu", lambda device: True)


@pytest.mark.parametrize("masked", [False, True])
def test_attentions_gradient(masked, monkeypatch):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 7, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    mask = torch.zeros(1, 1, 7, 7, dtype=torch.float64).masked_fill_(torch.rand(7, 7).triu(1) > 0.2, -torch.inf)
    found = []
    for ours in (True, False):
        monkeypatch.setattr(compiled, "on_gpu", lambda device, ours=ours: ours)
        out = sdpa(*inputs, 0.3, mask if masked else None)
        with Modes() as modes:
            found.append((out.detach(), *torch.autograd.grad(out.square().sum(), inputs)))
        backward = {on for name, on in modes.seen.items() if "attention" in name and "backward" in name}
        assert backward == {ours}
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


class Scaled(nn.Embedding):
    """Gemma's."""

    def forward(self, ids):
        return 3 * super().forward(ids)


def test_lookups_gradient():
    plain = nn.Embedding.forward
    torch.manual_seed(0)
    part, ids = Scaled(5, 3, padding_idx=1), torch.randint(5, (1, 40))
    signs = torch.randn(1, 40, 3)
    (wanted,) = torch.autograd.grad((part(ids) * signs).sum(), part.weight)
    with lookups_in_order(nn.Sequential(part)), Modes() as modes:
        (found,) = torch.autograd.grad((part(ids) * signs).sum(), part.weight)
    torch.testing.assert_close(found, wanted)
    assert modes.seen["embedding_dense_backward"]
    assert nn.Embedding.forward is plain
    assert not torch.are_deterministic_algorithms_enabled()


class Refusing(torch.autograd.Function):
    """An operation whose gradient has no other order."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("this has no deterministic implementation")
        return 2 * grad


def test_what_has_no_order_to_ask_for_runs_as_it_is():
    x = torch.ones(3, requires_grad=True)
    differentiated_in_order(Refusing.apply, x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert not torch.are_deterministic_algorithms_enabled()
