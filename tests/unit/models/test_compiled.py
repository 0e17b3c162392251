"""Functions compiled on CUDA equal the uncompiled ones; a function that cannot be compiled runs uncompiled."""

import copy
from types import SimpleNamespace

import pytest
import torch

from oncurve.machine import compiled as module
from oncurve.machine.compiled import compiled
from oncurve.models.head import linear_logprobs
from oncurve.models.layers import elementwise, rms_norm


def heads_and_tables(n):
    return torch.randn(n, n + 1, 16), torch.randn(n, 1, 16), torch.randn(n, 1, 16)


def in_place(n):
    logits = torch.randn(n, 40)
    return logits, logits, torch.randn(n, 1), 1.0, None, False


WEIGHT = torch.nn.Parameter(torch.linspace(-1, 2, 32, dtype=torch.bfloat16), requires_grad=False)
COMPILED = {
    "norm": (rms_norm._normed, lambda n: (torch.randn(1, n, 32), WEIGHT, 1e-6)),
    "rotation": (elementwise._rotate, lambda n: heads_and_tables(n)),
    "rotation backward": (elementwise._rotate_back, lambda n: heads_and_tables(n)),
    "gate": (elementwise._gate, lambda n: (torch.randn(1, n, 16), torch.randn(1, n, 16))),
    "gate backward": (elementwise._gate_back, lambda n: (*(torch.randn(1, n, 16) for _ in range(3)), True)),
    "gradient of a head, in place": (linear_logprobs._gradient, in_place),
    "gradient of a head": (
        linear_logprobs._gradient,
        lambda n: (torch.randn(n, 40), torch.empty(n, 40), torch.randn(n, 1), 0.7, torch.randn(n, 3), True),
    ),
    "norm backward": (
        rms_norm._differentiated,
        lambda n: (torch.randn(1, n, 32), torch.randn(1, n, 32).bfloat16(), WEIGHT, torch.rand(1, n, 1), True),
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
    for n in (5, 9, 12):
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


def test_on_a_gpu_it_is_compiled_once(monkeypatch):
    made = []

    def compiler(function, dynamic, options):
        made.append((function, dynamic, options))
        return lambda *args, **kwargs: "compiled"

    monkeypatch.setattr(module.torch, "compile", compiler)
    function, given = compiled(doubled), torch.ones(1).as_subclass(OnCuda)
    assert [function(given), function(given)] == ["compiled", "compiled"]
    assert made == [(doubled, True, {"deterministic": True})]


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so_once(monkeypatch):
    def compiler(function, **options):
        def fail(*args, **kwargs):
            raise RuntimeError("no compiler\nanywhere")

        return fail

    monkeypatch.setattr(module.torch, "compile", compiler)
    function, given = compiled(doubled), torch.ones(1).as_subclass(OnCuda)
    with pytest.warns(UserWarning, match="doubled could not be compiled and runs uncompiled: no compiler$"):
        assert float(function(given)) == 2
    assert float(function(given)) == 2


def test_no_memory_is_not_taken_for_no_compiler(monkeypatch):
    def compiler(function, **options):
        def fail(*args, **kwargs):
            raise torch.OutOfMemoryError("too much")

        return fail

    monkeypatch.setattr(module.torch, "compile", compiler)
    with pytest.raises(torch.OutOfMemoryError):
        compiled(doubled)(torch.ones(1).as_subclass(OnCuda))
