"""The fast path is taken only by what it computes rightly, and the run is told why."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaModel

from fakes.architectures import ARCHITECTURES, ROWS, VOCABULARY, architecture, gradients, relative
from fakes.recorder import record
from fakes.shrunk import shrunk
from fakes.tiny_policy import TinyLM
from oncurve.base.errors import ModelError
from oncurve.models import GenericModel, TransformersModel, wrap
from oncurve.models.decode import graph_buffers
from oncurve.models.decode.graph_loop import GraphLoop
from oncurve.models.decode.host_loop import HostLoop
from oncurve.models.decode.prefill import prefill
from oracles.plain_forward import plain_logits

REFUSED = {
    "a final soft cap": ("gemma2", {}, "soft cap"),
    "a soft cap in attention alone": ("gemma2", {"final_logit_softcapping": None}, "soft cap"),
    "attention sinks": ("gpt_oss", {}, "s_aux"),
    "scaled logits (cohere)": ("cohere", {}, "logits differ"),
    "scaled logits (granite)": ("granite", {"logits_scaling": 8.0}, "logits differ"),
    "attention of its own": ("bloom", {}, "AttentionInterface"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_promised_shapes_take_the_fast_path(name, dtype):
    model = wrap(architecture(name, dtype))
    assert isinstance(model, TransformersModel)
    assert model.fast
    assert model.path_reason.startswith("fast path")


@pytest.mark.parametrize(("kind", "settings", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_fast_path_would_compute_wrongly_goes_the_generic_path_and_says_why(kind, settings, reason):
    model = wrap(shrunk(kind, **settings))
    assert isinstance(model, GenericModel)
    assert not model.fast
    assert model.path_reason.startswith("generic path")
    assert reason in model.path_reason


def test_a_model_without_a_head_says_so():
    with pytest.raises(ModelError, match=r"LlamaModel.* must return logits"):
        wrap(LlamaModel(architecture("llama").config))


class Off(nn.Module):
    """A linear layer that is wrong as soon as it sees more than one row."""

    def __init__(self, inner, gradient_only):
        super().__init__()
        self.inner, self.gradient_only = inner, gradient_only

    def forward(self, x):
        y = self.inner(x)
        wrong = y * 1.5
        if x.shape[0] == 1:
            return y
        return wrong + (y - wrong).detach() if self.gradient_only else wrong


@pytest.mark.parametrize(("gradient_only", "reason"), [(False, "logits differ"), (True, "gradient differs")])
def test_a_difference_in_value_or_only_in_gradient_is_found(gradient_only, reason):
    module = architecture("llama")
    module.model.layers[0].mlp.up_proj = Off(module.model.layers[0].mlp.up_proj, gradient_only)
    assert reason in wrap(module).path_reason


def test_the_probe_leaves_gradients_random_numbers_weights_and_mode_of_attention_alone():
    module = architecture("llama")
    next(module.parameters()).grad = torch.ones_like(next(module.parameters()))
    random, weights = torch.get_rng_state(), {k: v.clone() for k, v in module.state_dict().items()}
    before = module.config._attn_implementation
    wrap(module)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(weights[name], tensor) for name, tensor in module.state_dict().items())
    assert (next(module.parameters()).grad == 1).all()
    assert all(parameter.grad is None for parameter in list(module.parameters())[1:])
    assert module.config._attn_implementation == before


def test_a_backward_that_fails_in_the_precision_of_the_run_alone_is_found():
    class Fragile(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if grad.dtype == torch.bfloat16 and grad.shape[0] == 1:
                raise RuntimeError("no such kernel")
            return grad

    class FragileLayer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(Fragile.apply(x))

    module = architecture("llama", torch.bfloat16)
    module.model.layers[1].mlp.down_proj = FragileLayer(module.model.layers[1].mlp.down_proj)
    model = wrap(module)
    assert not model.fast
    assert "no such kernel" in model.path_reason


def test_a_network_with_a_state_of_its_own_is_told_to_keep_none():
    model = wrap(shrunk("rwkv"))
    rows = (torch.tensor([0, 0]), torch.arange(8).view(2, 4), torch.tensor([4, 3]))
    hidden = model.completion_hidden([torch.tensor([3, 4, 5])], *rows)
    assert all(
        grad is not None for grad in torch.autograd.grad(hidden.logsumexp(-1).sum(), list(model.module.parameters()))
    )


def test_a_module_that_changes_its_own_weights_is_refused():
    class Drifting(TinyLM):
        def forward(self, input_ids):
            with torch.no_grad():
                self.mix.weight.mul_(1.0)
            return super().forward(input_ids)

    with pytest.raises(ModelError, match=r"Drifting changes its own weights when it is run \(mix.weight\)"):
        wrap(Drifting())


def forgotten_prompts(self, prompts, pages):
    return prefill(self._run, prompts, self.device)[0]


def later_positions(*given, correctly=graph_buffers._advance):
    progress, positions, *others = correctly(*given)
    return progress, positions + 9, *others


PARTS = {
    "host: the prefix": ("decode.cached_decoder.merge_softmax", lambda one, lse, other, other_lse: other),
    "host: prepacked weights": ("layers.prepacked_weights.PrepackedLinear.__call__", lambda self, x: x @ x.new_ones(1)),
    "host: dropped rows": ("decode.cached_decoder.CachedDecoder.keep", lambda self, rows: None),
    "graphs: the prefix": ("decode.graph_buffers.GraphBuffers.insert", forgotten_prompts),
    "graphs: positions": ("decode.graph_buffers._advance", later_positions),
}


@pytest.mark.parametrize("where", ["host", "graphs"])
@pytest.mark.parametrize("part", [None, *PARTS])
def test_the_probe_runs_the_loop_that_rollout_runs(part, where, monkeypatch):
    """A fault in any part of the loop is found where the loop is used, and only there."""
    if where == "graphs":
        monkeypatch.setattr("oncurve.models.network.capture_on", lambda device: record)
    if part is not None:
        name, fault = PARTS[part]
        monkeypatch.setattr(f"oncurve.models.{name}", fault)
    model = wrap(architecture("llama"))
    if part is not None and part.startswith(where):
        assert isinstance(model, GenericModel)
        assert "the fast path" in model.path_reason
    else:
        assert isinstance(model, TransformersModel)
        assert isinstance(model.token_loop(), GraphLoop if where == "graphs" else HostLoop)


class Returning(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, input_ids):
        return self.result


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("make", [lambda: TinyLM(VOCABULARY).double(), lambda: architecture("gpt2", torch.float64)])
def test_scoring_equals_each_row_alone_in_value_and_gradient(make, rows):
    module = make()
    model = GenericModel(module)
    arguments = (rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths)
    ours, theirs = model.logits(model.completion_hidden(*arguments)), plain_logits(module, *arguments)
    assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    assert relative(gradients(ours, module.parameters()), gradients(theirs, module.parameters())) < 1e-9


@pytest.mark.parametrize("result", [torch.zeros(2, 5), (torch.zeros(1, 5, 3),), None, SimpleNamespace(logits=None)])
def test_a_module_that_returns_no_logits_is_refused_with_what_it_returned(result):
    with pytest.raises(ModelError, match="must return logits of shape"):
        GenericModel(Returning(result)).decoder(1, 1).join([torch.tensor([1, 2])], 1)
