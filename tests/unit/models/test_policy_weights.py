"""Weights handed to engines elsewhere: every tensor once, by the name that a saved model has it under."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from fakes.architectures import SHAPE
from fakes.tiny_policy import TinyLM
from oncurve.models import LocalWeights, save, wrap

MODULES = {
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "untied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "converted": lambda: MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=3)),
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
