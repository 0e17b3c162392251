"""Leaf modules replaced in place compute what they replaced."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from fakes.architectures import ARCHITECTURES, UNIFORM, architecture
from oncurve.models import TransformersModel
from oncurve.models.layers.rms_norm import replace_norms

NORMS = {"llama": 5, "qwen2": 5, "qwen3": 9, "mistral": 5, "gpt2": 0}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_rms_norm_is_replaced_under_its_name(name):
    module = architecture(name)
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    assert replace_norms(module) == NORMS[name]
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert replace_norms(module) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_bits_stay_as_they_were(name, dtype):
    module = architecture(name, dtype)
    before = module(UNIFORM.completion_ids).logits
    replace_norms(module)
    assert torch.equal(module(UNIFORM.completion_ids).logits, before)


def test_the_sum_of_many_layers_is_kept_in_float32_where_weights_are_bf16():
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    module = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=24, initializer_range=0.1)).to(torch.bfloat16)
    module.model.embed_tokens.weight.data.mul_(8)  # as in a trained model, a layer adds little to a large sum
    rows = (UNIFORM.prompts, UNIFORM.group_ids, UNIFORM.completion_ids, UNIFORM.lengths)
    narrow = TransformersModel(module).completion_hidden(*rows)  # transformers' own norms are there still
    replace_norms(module)
    wide = TransformersModel(module).completion_hidden(*rows)
    exact = TransformersModel(copy.deepcopy(module).double()).completion_hidden(*rows)
    assert wide.dtype == narrow.dtype == torch.bfloat16
    assert (wide - exact).norm() < 0.8 * (narrow - exact).norm()
    assert module(UNIFORM.completion_ids).logits.dtype == torch.bfloat16  # for everybody else it is as it was


def test_a_norm_that_computes_something_else_stays():
    model = nn.Sequential(GemmaRMSNorm(8))
    assert replace_norms(model) == 0
    assert isinstance(model[0], GemmaRMSNorm)
