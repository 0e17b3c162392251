"""Outputs, gradients and sampled log-probs of a model with an adapter are those of PEFT's own forward."""

import copy
import dataclasses

import pytest
import torch

from fakes.adapted import NAMES, adapted, base, factors_of, peft_twin
from fakes.architectures import RAGGED, UNIFORM, gradients, logits_of
from fakes.tiny_policy import TinyLM
from oncurve.models.layers import recompute_layers
from oracles.plain_forward import plain_logits


def theirs(twin, rows):
    return plain_logits(twin, rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths)


def difference(got, wanted):
    """The largest difference, relative to the largest value."""
    got, wanted = got.detach(), wanted.detach()
    return float((got - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("attention", ["auto", "generic"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_in_float64(name, attention):
    module = base(name)
    plain = copy.deepcopy(module)
    model = adapted(module, attention)
    assert model.fast == (attention == "auto"), model.path_reason
    twin = peft_twin(plain, model)
    got, wanted = logits_of(model, RAGGED), theirs(twin, RAGGED)
    assert difference(got, wanted) < 1e-10
    found = gradients(got, model.adapter.parameters.values())
    for gradient, twins in zip(found, gradients(wanted, factors_of(twin, model)), strict=True):
        assert float(twins.abs().max()) > 0
        assert difference(gradient, twins) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_the_decoder_has_the_adapter(name):
    module = base(name)
    plain = copy.deepcopy(module)
    model = adapted(module)
    twin = peft_twin(plain, model)
    decoder = model.decoder(6, 6)
    first = decoder.join(UNIFORM.prompts, 2).repeat_interleave(2, 0)
    steps = [first] + [decoder.step(UNIFORM.completion_ids[:, t]) for t in range(5)]
    with torch.no_grad():
        got = torch.stack([decoder.logits(hidden) for hidden in steps], 1).flatten(0, 1)
        wanted = theirs(twin, UNIFORM)
    assert difference(got, wanted) < 1e-10


def test_the_gradient_of_layers_that_are_computed_again_is_the_same_bits():
    module = base("qwen2", torch.float32)
    model = adapted(module)
    parameters = list(model.adapter.parameters.values())
    kept = gradients(logits_of(model, RAGGED), parameters)
    assert recompute_layers(module) == 2
    assert all(map(torch.equal, kept, gradients(logits_of(model, RAGGED), parameters)))


def test_any_module_with_linear_layers():
    module = TinyLM().double()
    plain = copy.deepcopy(module)
    model = adapted(module)
    rows = dataclasses.replace(
        RAGGED, prompts=tuple(ids % 11 for ids in RAGGED.prompts), completion_ids=RAGGED.completion_ids % 11
    )
    assert not model.fast
    assert model.adapter.paths == ("mix", "out")
    twin = peft_twin(plain, model)
    got, wanted = logits_of(model, rows), theirs(twin, rows)
    assert difference(got, wanted) < 1e-10
