import copy

import pytest
import torch
from torch import Tensor, nn

from fakes.architectures import ARCHITECTURES, RAGGED, TokenRows, architecture, token_rows
from fakes.learning import finished, gradient
from fakes.tiny_policy import TinyLM, random_groups
from oncurve.base.errors import ConfigError
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


def test_without_a_gradient_nothing_is_run_twice_and_a_copy_is_like_its_original() -> None:
    module = architecture("qwen3")
    recompute_layers(module)
    twin = copy.deepcopy(module)
    assert recompute_layers(twin) == 2
    calls: list[int] = []
    twin.model.layers[0].mlp.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        value_of = TransformersModel(twin).completion_hidden(
            RAGGED.prompts, RAGGED.group_ids, RAGGED.completion_ids, RAGGED.lengths
        )
    assert calls == [1]
    right, _ = value_and_gradients(architecture("qwen3"), generic=False)
    assert torch.equal(value_of, right)
    assert twin.model.layers[0] is not module.model.layers[0]
    assert type(twin.model.layers[0]).__name__ == "Qwen3DecoderLayer"


def test_an_update_is_the_same_with_the_switch() -> None:
    groups, results = random_groups(), []
    for switch in (False, True):
        module = architecture("llama", torch.float64)
        config = LearnerConfig(gradient_checkpointing=switch, tokens_per_micro_batch=15)
        learner = config.build(TransformersModel(module), Clipped(), Regularizer(KLPenalty(coef=0.1)))
        results.append(gradient(learner, finished(learner, groups, old=False)))
    assert torch.equal(*results)


def test_a_module_without_layers_of_transformers_is_refused() -> None:
    config = LearnerConfig(gradient_checkpointing=True)
    with pytest.raises(ConfigError, match=r"gradient_checkpointing.*TinyLM"):
        config.build(GenericModel(TinyLM()), Clipped(), Regularizer(KLPenalty(coef=0.0)))
