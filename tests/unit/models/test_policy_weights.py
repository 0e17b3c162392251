"""Weights handed to engines elsewhere: every tensor once, by the name that a saved model has it under."""

from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from fakes.tiny_policy import TinyLM
from oncurve.models import LocalWeights, save, wrap
from oncurve.models.loading import hub_tensors

_SHAPE = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODULES = {
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, tie_word_embeddings=True)),
    "untied": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, tie_word_embeddings=False)),
    "converted": lambda: MixtralForCausalLM(MixtralConfig(**_SHAPE, num_local_experts=3)),
    "not of transformers": TinyLM,
}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buckets_hold_what_a_saved_model_has(kind, dtype, tmp_path):
    module = MODULES[kind]().to(dtype)
    save(module, None, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    model = wrap(module)
    for limit in (1, 3000, 10**9):
        buckets = list(LocalWeights(model, 3).buckets(limit))
        names = [name for bucket in buckets for name in bucket]
        assert sorted(names) == sorted(saved)
        assert all(len(bucket) == 1 or sum(x.nbytes for x in bucket.values()) <= limit for bucket in buckets)
        for bucket in buckets:
            for name, tensor in bucket.items():
                assert not tensor.requires_grad
                assert tensor.dtype == saved[name].dtype
                assert torch.equal(tensor, saved[name])
    assert len(buckets) == 1


def test_neighbouring_buckets_do_not_fit_into_one():
    sizes = [[x.nbytes for x in bucket.values()] for bucket in LocalWeights(wrap(MODULES["untied"]()), 0).buckets(3000)]
    assert len(sizes) > 2
    assert all(sum(left) + right[0] > 3000 for left, right in pairwise(sizes))


def test_tied_tensors_of_a_plain_module_come_once_under_the_first_name():
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3, bias=False), "b": torch.nn.Linear(3, 3, bias=False)})
    module["b"].weight = module["a"].weight
    assert [name for name, _ in hub_tensors(module)] == ["a.weight"]


def test_local_weights_are_the_model_itself():
    model = wrap(TinyLM())
    weights = LocalWeights(model, 7)
    assert (weights.local(), weights.version) == (model, 7)
