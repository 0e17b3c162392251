"""Blocks compute what they replaced, in training and decoding, and leave alone what is not theirs."""

import copy

import pytest
import torch
from torch import nn
from transformers import GemmaConfig, GemmaForCausalLM, Olmo2Config, Olmo2ForCausalLM, PhiConfig, PhiForCausalLM

from fakes.architectures import (
    ARCHITECTURES,
    RAGGED,
    ROWS,
    SHAPE,
    UNIFORM,
    architecture,
    gradients,
    logits_of,
    relative,
)
from oncurve.models import TransformersModel
from oncurve.models.layers.blocks import blocks_of, replace_blocks
from oncurve.models.layers.prepacked_weights import PrepackedLinear
from oncurve.models.layers.rms_norm import replace_norms
from oracles.plain_forward import plain_logits

FAMILY = ("llama", "qwen2", "qwen3", "mistral")
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}
HEADED = SHAPE | {"head_dim": 8}


def replaced(name, dtype=torch.float32):
    module = architecture(name, dtype)
    replace_norms(module)
    replace_blocks(module)
    return module


def decoded(model, rows=UNIFORM, packed=True, monkeypatch=None):
    if monkeypatch is not None and not packed:
        monkeypatch.setattr("oncurve.models.layers.prepacked_weights.MOST_JOINED_BYTES", 0)
        monkeypatch.setattr("oncurve.models.layers.prepacked_weights.MOST_PREPACKED_BYTES", 0)
    decoder = model.decoder(rows.prompts, [2] * len(rows.prompts), 6)
    ids = torch.arange(2 * len(rows.prompts))
    steps = [decoder.first_hidden[decoder.groups]] + [decoder.step((ids + 7 * step) % 61) for step in range(5)]
    with torch.no_grad():
        return torch.stack([decoder.logits(hidden) for hidden in steps])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_blocks_a_layer_under_the_same_names_for_the_llama_family(name):
    module = architecture(name)
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    kinds = [type(part).__mro__[-3:] for part in module.modules()]
    assert replace_blocks(module) == len(blocks_of(module)) == (4 if name in FAMILY else 0)
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert kinds == [type(part).__mro__[-3:] for part in module.modules()]
    assert replace_blocks(module) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FAMILY)
def test_for_everybody_else_the_module_is_what_it_was(name, dtype):
    module = architecture(name, dtype)
    ids = UNIFORM.completion_ids
    before, written = module(ids).logits, module.generate(ids, do_sample=False, max_new_tokens=5, pad_token_id=0)
    assert replace_blocks(module) == 4
    assert torch.equal(module(ids).logits, before)
    assert torch.equal(module.generate(ids, do_sample=False, max_new_tokens=5, pad_token_id=0), written)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("name", FAMILY)
def test_the_forward_equals_the_plain_one_in_value_and_gradient(name, rows, dtype):
    module = replaced(name, dtype)
    ours = logits_of(TransformersModel(module), rows)
    plain = architecture(name, dtype)
    replace_norms(plain)  # transformers' own are float32 inside
    theirs = plain_logits(plain, rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths)
    assert (ours - theirs).abs().max() <= LIMITS[dtype] * theirs.abs().max()
    assert relative(gradients(ours, module.parameters()), gradients(theirs, plain.parameters())) <= LIMITS[dtype]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("name", FAMILY)
def test_decoding_with_packed_weights_is_decoding_without(name, dtype, limit, monkeypatch):
    packing = TransformersModel(replaced(name, dtype))
    decoder = packing.decoder(UNIFORM.prompts, [2] * len(UNIFORM.prompts), 6)
    assert isinstance(decoder.logits, PrepackedLinear)  # something is packed
    packed = decoded(packing)
    apart = decoded(TransformersModel(replaced(name, dtype)), packed=False, monkeypatch=monkeypatch)
    assert packed.dtype == apart.dtype == dtype
    assert (packed - apart).abs().max() <= limit * apart.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_decoder_keeps_the_weights_it_began_with_and_nothing_else_does(dtype):
    model = TransformersModel(replaced("llama", dtype))
    before = decoded(model)
    decoder = model.decoder(UNIFORM.prompts, [2] * len(UNIFORM.prompts), 6)  # lives on, with its packed weights
    trained = logits_of(TransformersModel(model.module), UNIFORM)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.data.mul_(1.5)  # behind the back of every version counter
    decoder.step(torch.zeros(len(decoder.groups), dtype=torch.int64))
    fresh = TransformersModel(copy.deepcopy(model.module))
    assert torch.equal(
        logits_of(TransformersModel(model.module), UNIFORM), logits_of(TransformersModel(fresh.module), UNIFORM)
    )
    assert not torch.equal(logits_of(TransformersModel(model.module), UNIFORM), trained)
    after = decoded(model)
    assert torch.equal(after, decoded(fresh))
    assert not torch.equal(after, before)


def test_an_adapter_around_a_layer_is_respected():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    module = replaced("llama")
    plain = decoded(TransformersModel(module))
    inner = module.model.layers[0].mlp.up_proj
    inner.__class__ = Doubled
    doubled = decoded(TransformersModel(module))
    inner.__class__ = nn.Linear
    inner.weight.data.mul_(2)
    assert torch.allclose(doubled, decoded(TransformersModel(module)), atol=1e-5)
    assert not torch.allclose(doubled, plain, atol=1e-2)


@pytest.mark.parametrize(
    ("module", "replaced_blocks"),
    [
        (lambda: Olmo2ForCausalLM(Olmo2Config(**SHAPE)), 2),
        (lambda: PhiForCausalLM(PhiConfig(**SHAPE)), 0),
        (lambda: GemmaForCausalLM(GemmaConfig(**HEADED)), 4),
    ],
    ids=["norms over all heads at once", "rotates half a head", "a family of its own"],
)
def test_what_computes_something_else_keeps_its_code(module, replaced_blocks):
    torch.manual_seed(0)
    model = module().eval()
    for parameter in model.parameters():  # norms of ones hide what they norm
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    theirs = plain_logits(model, RAGGED.prompts, RAGGED.group_ids, RAGGED.completion_ids, RAGGED.lengths)
    assert replace_blocks(model) == replaced_blocks
    assert (logits_of(TransformersModel(model), RAGGED) - theirs).abs().max() <= 1e-4 * theirs.abs().max()
