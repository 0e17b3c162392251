"""What is written of a model with an adapter, in one folder."""

from pathlib import Path

import torch
from torch import nn

from fakes.adapted import adapted
from fakes.architectures import architecture
from oncurve import durable
from oncurve.models import save


def test_merged_model_and_adapter_are_one_folder_that_verifies(tmp_path: Path) -> None:
    model = adapted(architecture("llama"))
    save(model.module, None, tmp_path / "model", adapter=model.adapter)
    assert not durable.verify(tmp_path / "model")
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"model/model.safetensors", "model/adapter/adapter_model.safetensors"} <= names
    (tmp_path / "model" / "adapter" / "adapter_config.json").write_text("{}")
    assert durable.verify(tmp_path / "model")


def test_over_weights_that_are_no_floats_the_adapter_is_written_alone(tmp_path: Path) -> None:
    model = adapted(architecture("llama"))
    assert not model.adapter.quantized
    layer = model.module.get_submodule(model.adapter.paths[0]).base
    layer.weight = nn.Parameter(torch.zeros(layer.weight.shape, dtype=torch.uint8), requires_grad=False)
    assert model.adapter.quantized
    save(model.module, None, tmp_path / "model", adapter=model.adapter)
    assert not durable.verify(tmp_path / "model")
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert (tmp_path / "model" / "adapter" / "adapter_model.safetensors").is_file()
