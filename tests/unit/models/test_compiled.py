"""Functions compiled on CUDA equal the uncompiled ones; a function that cannot be compiled runs uncompiled."""

import copy
import functools
from types import SimpleNamespace

import pytest
import torch

from oncurve.machine import compiled as module
from oncurve.machine.compiled import compiled, compiled_sum
from oncurve.models.head import linear_logprobs
from oncurve.models.layers import elementwise, rms_norm


def heads_and_tables(n):
    return torch.randn(n, n + 1, 16), torch.randn(n, 1, 16), torch.randn(n, 1, 16)


def in_place(n):
    logits = torch.randn(n, 40)
    return logits, logits, torch.randn(n, 1), 1.0, None, False


def named(function, **arguments):
    """The function with arguments given by name, for the compiler to see as they are."""

    @functools.wraps(function.__wrapped__)
    def call(*args):
        return function.__wrapped__(*args, **arguments)

    call.__wrapped__ = call
    return call


WEIGHT = torch.nn.Parameter(torch.linspace(-1, 2, 32, dtype=torch.bfloat16), requires_grad=False)
COMPILED = {
    "norm": (named(rms_norm._normed, weight=WEIGHT, eps=1e-6), lambda n: (torch.randn(1, n, 32),)),
    "rotation": (elementwise._rotate, heads_and_tables),
    "rotation backward": (elementwise._rotate_back, heads_and_tables),
    "gate": (elementwise._gate, lambda n: (torch.randn(1, n, 16), torch.randn(1, n, 16))),
    "gate backward": (elementwise._gate_back, lambda n: (*(torch.randn(1, n, 16) for _ in range(3)), True)),
    "gradient of a head, in place": (linear_logprobs._gradient, in_place),
    "gradient of a head": (
        linear_logprobs._gradient,
        lambda n: (torch.randn(n, 40), torch.empty(n, 40), torch.randn(n, 1), 0.7, torch.randn(n, 3), True),
    ),
    "norm backward": (
        named(rms_norm._differentiated, weight=WEIGHT, with_weight=True),
        lambda n: (torch.randn(n, 2, 32), torch.randn(n, 2, 32).bfloat16(), torch.rand(n, 2, 1)),
    ),
    "moments": (
        named(linear_logprobs._moments, temperature=0.7, with_mean=True, truncated=True),
        lambda n: (torch.randn(n, 40),),
    ),
}
"""Each function with arguments of a size `n`."""


@pytest.mark.parametrize("name", COMPILED)
def test_a_function_is_traced_once_for_all_sizes_and_computes_the_same(name):
    function, arguments = COMPILED[name]
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    traced = torch.compile(function.__wrapped__, backend=backend, dynamic=True, fullgraph=True)
    for n in (5, 9):
        given = arguments(n)
        again = copy.deepcopy(given)  # what is one tensor stays one
        torch.testing.assert_close((traced(*again), again), (function(*given), given))
    assert len(graphs) == 1


class OnCuda(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    @property
    def device(self):
        return SimpleNamespace(type="cuda")


def doubled(x, times=2):
    return x * times


def failing(error):
    """A compiler whose functions fail."""

    def fail(*args, **kwargs):
        raise error

    return lambda function, **options: fail


def test_on_a_gpu_it_is_compiled_once(monkeypatch):
    made = []

    def compiler(function, dynamic, options):
        made.append((function, dynamic, options))
        return lambda *args, **kwargs: "compiled"

    monkeypatch.setattr(module.torch, "compile", compiler)
    function, given = compiled(doubled), torch.ones(1).as_subclass(OnCuda)
    assert [function(given), function(given)] == ["compiled", "compiled"]
    assert made == [(doubled, True, {"deterministic": True})]


def test_a_sum_is_compiled_for_the_same_sizes_whatever_comes_first(monkeypatch):
    """The sizes that the compiler sees first are those by which it chooses the order of a sum."""
    orders = []
    for sizes in ((3, 7, 300), (300, 3)):
        met = []
        monkeypatch.setattr(module.torch, "compile", lambda f, met=met, **_: lambda x, **__: met.append(tuple(x.shape)))
        function = compiled_sum(doubled)
        for rows in sizes:
            function(torch.ones(rows, 20000).as_subclass(OnCuda), times=2)
        assert met[-len(sizes) :] == [(rows, 20000) for rows in sizes]
        orders.append(met[: -len(sizes)])
    assert orders == [[(509, 16411)], [(509, 16411)]]


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so_once(monkeypatch):
    monkeypatch.setattr(module.torch, "compile", failing(RuntimeError("no compiler\nanywhere")))
    function, given = compiled(doubled), torch.ones(1).as_subclass(OnCuda)
    with pytest.warns(UserWarning, match="doubled could not be compiled and runs uncompiled: no compiler$"):
        assert float(function(given)) == 2
    assert float(function(given)) == 2


def test_no_memory_is_not_taken_for_no_compiler(monkeypatch):
    monkeypatch.setattr(module.torch, "compile", failing(torch.OutOfMemoryError("too much")))
    with pytest.raises(torch.OutOfMemoryError):
        compiled(doubled)(torch.ones(1).as_subclass(OnCuda))
