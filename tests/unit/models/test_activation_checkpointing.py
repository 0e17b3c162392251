import pytest
import torch
from torch import Tensor, nn

from fakes.architectures import ARCHITECTURES, RAGGED, TokenRows, architecture, token_rows
from fakes.tiny_policy import TinyLM
from oncurve.errors import ConfigError
from oncurve.learner import LearnerConfig
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models import GenericModel, TransformersModel
from oncurve.models.layers.activation_checkpointing import recompute_layers

LONG = token_rows((40, 25), (0, 0, 0, 0, 1, 1, 1, 1), (50, 31, 60, 44, 20, 60, 35, 52))


def value_and_gradients(module: nn.Module, generic: bool, rows: TokenRows = RAGGED) -> tuple[Tensor, list[Tensor]]:
    model = GenericModel(module) if generic else TransformersModel(module)
    hidden = model.completion_hidden(rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths)
    wave = torch.cos(torch.arange(hidden.numel(), dtype=hidden.dtype)).view_as(hidden)
    wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
    found = torch.autograd.grad((hidden * wave).sum(), wanted, allow_unused=True)
    return hidden.detach(), [each for each in found if each is not None]


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_values_and_gradients_are_the_same_bits(name: str, generic: bool) -> None:
    value, right = value_and_gradients(architecture(name), generic)
    module = architecture(name)
    assert recompute_layers(module) == 2
    again, given = value_and_gradients(module, generic)
    assert torch.equal(again, value)
    assert all(torch.equal(a, b) for a, b in zip(given, right, strict=True))


def kept_bytes(module: nn.Module) -> int:
    """What the forward pass keeps for the backward one, parameters aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model = TransformersModel(module)
        hidden = model.completion_hidden(LONG.prompts, LONG.group_ids, LONG.completion_ids, LONG.lengths)
    del hidden
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_a_layer_keeps_its_input_alone() -> None:
    module = architecture("llama")
    before = kept_bytes(module)
    recompute_layers(module)
    tokens = sum(len(prompt) for prompt in LONG.prompts) + int(LONG.lengths.sum())
    assert kept_bytes(module) < before / 4
    assert kept_bytes(module) < 8 * tokens * 32 * 4  # a few rows of the hidden size, of both layers together


def test_a_module_without_layers_of_transformers_is_refused() -> None:
    config = LearnerConfig(gradient_checkpointing=True)
    with pytest.raises(ConfigError, match=r"gradient_checkpointing.*TinyLM"):
        config.build(GenericModel(TinyLM()), Clipped(), Regularizer(KLPenalty(coef=0.0)))
