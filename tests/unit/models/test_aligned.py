"""Weights lie where torch puts tensors, however long the header of their file is."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fakes.architectures import architecture
from oncurve.models import ModelConfig, tiny
from oncurve.models.layers.alignment import ALIGNMENT, aligned
from oncurve.models.loading.weights import loaded_from

SIZES = pytest.mark.parametrize("size", [0, 8, 24, 40])


def lengthened(folder, size):
    """The folder, with `size` bytes more in the header of its weights' file."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt", "filler": "x" * size})
    return folder


def starts(module):
    return {tensor.data_ptr() % ALIGNMENT for tensor in (*module.parameters(), *module.buffers())}


@SIZES
def test_a_loaded_model_lies_where_torch_puts_tensors(tmp_path, size):
    folder = lengthened(tmp_path / shutil.copytree(tiny.path(), tmp_path / "model"), size)
    stored = load_file(folder / "model.safetensors")
    loaded = [ModelConfig(path=str(folder), dtype="float32").build(masters=masters) for masters in (False, True)]
    own = loaded_from(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    for each in (*loaded, own):
        assert starts(each.model.module) == {0}
        state = each.model.module.state_dict()
        assert all(torch.equal(tensor, stored[name].float()) for name, tensor in state.items() if name in stored)


def test_tied_weights_stay_tied_and_what_lies_right_stays_where_it_is():
    module = architecture("llama")
    tied = module.get_input_embeddings().weight
    module.lm_head.weight = tied
    where = {name: tensor.data_ptr() for name, tensor in module.named_parameters() if tensor is not tied}
    wanted = tied.detach().clone()
    tied.data = torch.empty(tied.numel() + 1, dtype=tied.dtype)[1:].view(tied.shape).copy_(wanted)
    assert tied.data_ptr() % ALIGNMENT
    assert aligned(module) is module
    assert module.lm_head.weight is module.get_input_embeddings().weight is tied
    assert torch.equal(tied, wanted)
    assert starts(module) == {0}
    assert all(module.get_parameter(name).data_ptr() == start for name, start in where.items())
