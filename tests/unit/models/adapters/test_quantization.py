"""A base in 4 bits: what transformers is told, and where it is refused. (No test loads one: that takes a GPU.)"""

import sys

import pytest
import torch

from oncurve.config import load_config
from oncurve.errors import ConfigError, ModelError
from oncurve.models import LoraSettings, ModelConfig, tiny
from oncurve.models.loading.quantization import quantization_config

QUANTISED = ["model.quantization=nf4", "lora.rank=4"]


def test_a_cpu_and_full_training_are_refused_when_settings_are_loaded():
    assert load_config("grpo", QUANTISED)[0].model.quantization == "nf4"
    with pytest.raises(ConfigError, match="every product would unpack its weights"):
        load_config("grpo", [*QUANTISED, "model.device=cpu"])
    with pytest.raises(ConfigError, match=r"quantised weights cannot be trained, .* set lora\.rank"):
        load_config("grpo", QUANTISED[:1])
    with pytest.raises(ConfigError, match="int3"):
        load_config("grpo", ["model.quantization=int3", "lora.rank=4"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_machine_without_a_gpu_is_refused_before_anything_is_loaded():
    config = ModelConfig(path=str(tiny.path()), quantization="nf4")
    with pytest.raises(ModelError, match="needs a CUDA device, and the model is on a CPU"):
        config.build(lora=LoraSettings(rank=4))


def test_a_missing_package_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ModelError, match=r"pip install 'oncurve\[qlora\]'"):
        quantization_config("nf4", torch.bfloat16, torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"pip install 'oncurve\[lora\]'"):
        ModelConfig(path=str(tiny.path())).build(lora=LoraSettings(rank=4))
