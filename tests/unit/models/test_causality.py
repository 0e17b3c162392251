"""What lets a token see the tokens after it is refused before anything is sampled, wherever the module comes from."""

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

from fakes.architectures import SHAPE
from fakes.shrunk import shrunk
from fakes.tiny_policy import TinyLM
from oncurve.base.errors import ModelError
from oncurve.models import causality, wrap

ENCODERS = {kind: {} for kind in ("bert", "roberta", "electra", "xlnet")} | {
    "gemma3_text": {"use_bidirectional_attention": True},
    "llama": {"is_causal": False},
}


class Leaking(nn.Module):
    """Logits of `TinyLM`, and something that `leak (B, L, V) -> (B, L, V)` brings in from elsewhere in the row."""

    def __init__(self, leak):
        super().__init__()
        self.inner, self.leak = TinyLM(11), leak

    def forward(self, input_ids):
        logits = self.inner(input_ids)
        return logits + 1e-2 * self.leak(logits)


def _from_next(x):
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)


def _within_first(x, size=4):
    return torch.cat([x[:, :size].mean(1, keepdim=True).expand_as(x[:, :size]), torch.zeros_like(x[:, size:])], 1)


def _at_even_places(x):
    seen = _from_next(x).clone()
    seen[:, 1::2] = 0
    return seen


LEAKS = {
    "the mean of the row": lambda x: x.mean(1, keepdim=True).expand_as(x),
    "the next token": _from_next,
    "the next token, at every other place": _at_even_places,
    "the last token": lambda x: x[:, -1:].expand_as(x),
    "a prefix that sees itself whole": _within_first,
    "the length of the row": lambda x: torch.full_like(x, x.shape[1]),
    "places counted from the end": lambda x: torch.arange(x.shape[1], 0, -1.0)[None, :, None].expand_as(x),
}
PATHS = pytest.mark.parametrize("path", ["auto", "generic"])


@PATHS
@pytest.mark.parametrize("name", ENCODERS)
def test_a_network_that_sees_both_ways_is_refused_and_left_as_it_was(name, path):
    module = shrunk(name, **ENCODERS[name]).train()
    parts = {place: type(part) for place, part in module.named_modules()}
    with pytest.raises(ModelError, match=f"{type(module).__name__} is not causal: its logits for earlier tokens"):
        wrap(module, path)
    assert {place: type(part) for place, part in module.named_modules()} == parts
    assert all(part.training for part in module.modules())


@PATHS
@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS.keys())
def test_any_module_that_leaks_is_refused(leak, path):
    with pytest.raises(ModelError, match=r"Leaking is not causal.*place \d+ on"):
        wrap(Leaking(leak), path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS.keys())
def test_a_leak_that_half_precision_would_hide_is_refused(leak, dtype):
    with pytest.raises(ModelError, match="Leaking is not causal"):
        wrap(Leaking(leak).to(dtype))


@pytest.mark.parametrize("sleeps", ["out", "gate"])
def test_a_leak_that_only_begins_when_weights_leave_0_is_refused(sleeps):
    class Gated(Leaking):
        def __init__(self):
            super().__init__(LEAKS["the last token"])
            self.gate = nn.Parameter(torch.ones(1))
            weights = {"out": self.inner.out.weight, "gate": self.gate}[sleeps]
            weights.data.zero_()

        def forward(self, input_ids):
            logits = self.inner(input_ids)
            return logits + self.gate * self.leak(logits)

    module = Gated()
    with pytest.raises(ModelError, match="Gated is not causal"):
        wrap(module)
    assert not (module.inner.out.weight if sleeps == "out" else module.gate).any()
    causal = TinyLM()
    causal.out.weight.data.zero_()
    wrap(causal)
    assert not causal.out.weight.any()


def test_a_module_that_gives_other_logits_when_asked_again_is_refused():
    class Noisy(nn.Module):
        def forward(self, input_ids):
            return torch.randn(*input_ids.shape, 5)

    with pytest.raises(ModelError, match="Noisy gives other logits for the same tokens"):
        wrap(Noisy())


def test_random_numbers_and_gradients_stay_as_they_were():
    module, state = TinyLM(11), torch.get_rng_state()
    wrap(module)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS.keys())
def test_a_leak_of_half_precision_is_refused_where_there_is_no_room_for_a_copy(leak, monkeypatch):
    monkeypatch.setattr(causality, "SMALL", 0)
    with pytest.raises(ModelError, match="Leaking is not causal"):
        wrap(Leaking(lambda x: 100 * leak(x)).to(torch.bfloat16))


@pytest.mark.parametrize(("small", "refused"), [(causality.SMALL, 0), (0, 1)])
def test_rounding_that_sends_a_token_to_another_expert_is_no_leak(small, refused, monkeypatch):
    """Without a float32 copy a few in a hundred random models are refused all the same, others on each processor."""
    monkeypatch.setattr(causality, "SMALL", small)
    found = 0
    for seed in (16, 38, 111, 5):
        torch.manual_seed(seed)
        module = MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=3)).to(torch.bfloat16)
        try:
            assert wrap(module).module is module
        except ModelError:
            found += 1
    assert found <= refused
