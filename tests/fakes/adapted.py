"""Tiny models with an adapter of oncurve's, and their twins with one of PEFT's own."""

import copy
import warnings

import peft
import torch
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from fakes.architectures import SHAPE, architecture
from oncurve.models import Adapter, CausalModel, LoraSettings, wrap
from oncurve.models.adapters import put_adapter
from oncurve.models.layers.rms_norm import replace_norms

NAMES = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "qwen3-moe")


def base(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    if name != "qwen3-moe":
        return architecture(name, dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
        module = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **shape)).to(dtype).eval()
        module.config._experts_implementation = "eager"  # the default's kernel takes no float64
        for part in module.modules():
            if isinstance(part, Qwen3MoeTopKRouter):
                part.__class__ = ExactRouter
        return module


class ExactRouter(Qwen3MoeTopKRouter):
    """transformers' router without its rounding of probabilities to float32."""

    def forward(self, hidden_states):
        logits = nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
        scores, indices = logits.softmax(-1).topk(self.top_k, dim=-1)
        return logits, scores / scores.sum(-1, keepdim=True) if self.norm_topk_prob else scores, indices


def trained_adapter(module: nn.Module, trained: bool = True, seed: int = 3, **settings: object) -> Adapter:
    """An adapter in the module; `trained`: its B is not 0."""
    adapter = put_adapter(module, LoraSettings.model_validate({"rank": 3, "alpha": 7.0} | settings), seed)
    if trained:
        fill(adapter.parameters)
    return adapter


def adapted(module: nn.Module, attention: str = "auto", **options: object) -> CausalModel:
    """The module with an adapter, on its path: `trained_adapter` has the options."""
    return wrap(module, attention, trained_adapter(module, **options))


def fill(parameters: dict[str, nn.Parameter], size: float = 0.2) -> None:
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if ".lora_B." in name:
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def peft_twin(module: nn.Module, model: CausalModel) -> nn.Module:
    """PEFT's own model over a base that is like `module`, with the factors of `model`."""
    twin = copy.deepcopy(module)
    if model.fast:
        replace_norms(twin)  # in float64 those of transformers round to float32
    config = copy.deepcopy(model.adapter.config)
    config.task_type = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = peft.get_peft_model(twin, config, autocast_adapter_dtype=False)
    own = dict(made.base_model.model.named_parameters())
    assert {name for name, parameter in own.items() if parameter.requires_grad} == set(model.adapter.parameters)
    with torch.no_grad():
        for name, parameter in model.adapter.parameters.items():
            own[name].copy_(parameter)
    return made.base_model.model.eval()


def factors_of(twin: nn.Module, model: CausalModel) -> list[nn.Parameter]:
    own = dict(twin.named_parameters())
    return [own[name] for name in model.adapter.parameters]
