"""The packed, prefix-shared attention: its window, its precision, real weights, and what it refuses."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fakes.architectures import ARCHITECTURES, RAGGED, UNIFORM, architecture, gradients, logits_of, relative, token_rows
from oncurve.base.errors import ModelError
from oncurve.models import ModelConfig, TransformersModel
from oncurve.models.attention.hook import attention
from oracles.plain_forward import plain_logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bf16_weights_stay_near_the_float32_forward(name):
    module = architecture(name)
    wanted = logits_of(TransformersModel(module), RAGGED).detach()
    got = logits_of(TransformersModel(module.bfloat16()), RAGGED)
    assert got.dtype == torch.float32
    assert (got - wanted).abs().mean() <= 0.03 * wanted.abs().mean()


def test_the_window_of_the_mistral_shape_matters_and_is_kept_across_the_prompt():
    windowed, free = architecture("mistral", torch.float64), architecture("mistral", torch.float64)
    free.config.sliding_window = None
    narrow, wide = (logits_of(TransformersModel(module), UNIFORM) for module in (windowed, free))
    assert (narrow - wide).abs().max() > 1e-2


def test_an_empty_prompt_is_refused():
    model = TransformersModel(architecture("llama"))
    empty = torch.empty(0, dtype=torch.long)
    with pytest.raises(ValueError, match="at least one token"):
        model.completion_hidden([empty], torch.tensor([0]), torch.tensor([[1]]), torch.tensor([1]))


class Spy:
    def attend(self, layer, query, key, value, scaling, window):
        self.seen = (layer, query.shape, key.shape, scaling, window)
        return query


class Attention(nn.Module):
    layer_idx = 3
    is_causal = True


def call(module: nn.Module | None = None, rows: int = 1, mask: Tensor | None = None, **arguments):
    arguments = {"oncurve_context": Spy(), **arguments}
    query = torch.zeros(rows, 4, 7, 8)
    key = torch.zeros(rows, 2, 7, 8)
    return attention(module or Attention(), query, key, key, mask, **arguments), arguments["oncurve_context"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"softcap": 30.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"something_new": True}, "something_new"),
        ({"dropout": 0.1}, "dropout 0.1"),
        ({"mask": torch.zeros(1, 1, 7, 7)}, "mask of its own"),
        ({"is_causal": False}, "not causal"),
        ({"oncurve_context": None}, "does not pass keyword arguments down"),
        ({"rows": 2}, "2 rows"),
        ({"module": nn.Identity()}, "no layer_idx"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_the_attention_does_not_do_is_refused_not_ignored(asked, message):
    with pytest.raises(ModelError, match=message):
        call(**asked)


class Windowed(Attention):
    def __init__(self, **config):
        super().__init__()
        self.config = SimpleNamespace(**config)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, None),
        ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, 4),
        ({"sliding_window": 4}, None),
        ({"sliding_window": None}, 4),
    ],
)
def test_a_window_that_configuration_and_attention_see_differently_is_refused(config, window):
    with pytest.raises(ModelError, match="sliding window"):
        call(Windowed(**config), sliding_window=window)


@pytest.mark.parametrize("name", ["stories260k", "babyllama105"])
def test_real_weights_packed_and_plain_agree(test_data, name):
    model = ModelConfig(path=str(test_data / "models" / name), dtype="float32").build().model
    rows = token_rows((12, 30, 5), (0, 0, 0, 1, 1, 2), (20, 7, 31, 1, 16, 28), seed=3)
    ours = logits_of(model, rows)
    theirs = plain_logits(model.module, rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    assert relative(gradients(ours, model.module.parameters()), gradients(theirs, model.module.parameters())) <= 1e-5
