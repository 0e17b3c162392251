"""Blocks compute what they replaced, in training and decoding, and leave alone what is not theirs."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fakes import architectures as made
from fakes.adapted import trained_adapter
from fakes.architectures import ARCHITECTURES, RAGGED, ROWS, UNIFORM, architecture, gradients, logits_of, relative
from fakes.shrunk import shrunk
from fakes.tiny_policy import TinyLM
from fakes.tolerance import assert_close
from oncurve.base.errors import ConfigError
from oncurve.learner import LearnerConfig
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models import GenericModel, TransformersModel
from oncurve.models.layers import elementwise, prepacked_weights as packing, rms_norm
from oncurve.models.layers.activation_checkpointing import recompute_layers
from oncurve.models.layers.blocks import blocks_of, replace_blocks
from oncurve.models.layers.prepacked_weights import PrepackedLinear
from oncurve.models.layers.rms_norm import RMSNorm, replace_norms
from oracles.plain_forward import plain_logits

FAMILY = ("llama", "qwen2", "qwen3", "mistral")
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}


def replaced(name, dtype=torch.float32):
    """The family's blocks and norms; "granite" has them too, and what they give is multiplied."""
    scaled = {"residual_multiplier": 0.3, "embedding_multiplier": 2.0}
    module = shrunk(name, **scaled).to(dtype) if name == "granite" else architecture(name, dtype)
    replace_norms(module)
    replace_blocks(module)
    return module


def decoded(model, rows=UNIFORM):
    ids = torch.arange(2 * len(rows.prompts))
    decoder = model.decoder(len(ids), 6)
    first = decoder.join(rows.prompts, 2).repeat_interleave(2, 0)
    steps = [first] + [decoder.step((ids + 7 * step) % 61) for step in range(5)]
    with torch.no_grad():
        return torch.stack([decoder.logits(hidden) for hidden in steps])


def norms_of(module):
    return [part for part in module.modules() if isinstance(part, RMSNorm)]


REPLACED = {replace_blocks: (blocks_of, dict.fromkeys(FAMILY, 4)),
            replace_norms: (norms_of, {"llama": 5, "qwen2": 5, "qwen3": 9, "mistral": 5})}  # fmt: skip


@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_blocks_a_layer_and_every_norm_are_replaced_once_under_their_names(name, replace):
    module, (parts_of, counts) = architecture(name), REPLACED[replace]
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    kinds = [type(part).__mro__[-3:] for part in module.modules()]
    replace(module)
    parts = {part: type(part) for part in parts_of(module)}
    assert len(parts) == counts.get(name, 0)
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert replace is replace_norms or kinds == [type(part).__mro__[-3:] for part in module.modules()]
    replace(module)
    assert {part: type(part) for part in parts_of(module)} == parts


@pytest.mark.parametrize(
    ("rows", "dtype"), [*((rows, torch.float64) for rows in ROWS.values()), (RAGGED, torch.float32)]
)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_forward_equals_the_plain_one_in_value_and_gradient(name, rows, dtype):
    module = replaced(name, dtype)
    ours = logits_of(TransformersModel(module), rows)
    assert ours.dtype == dtype
    plain = architecture(name, dtype)
    replace_norms(plain)  # transformers' own are float32 inside
    theirs = plain_logits(plain, rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths)
    assert (ours - theirs).abs().max() <= LIMITS[dtype] * theirs.abs().max()
    assert relative(gradients(ours, module.parameters()), gradients(theirs, plain.parameters())) <= LIMITS[dtype]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("name", FAMILY)
def test_decoding_with_packed_weights_is_decoding_without(name, dtype, limit, monkeypatch):
    model = TransformersModel(replaced(name, dtype))
    assert isinstance(model.decoder(6, 6).logits, PrepackedLinear)  # something is packed
    packed = decoded(model)
    monkeypatch.setattr(packing, "MOST_PREPACKED_BYTES", 0)
    apart = decoded(TransformersModel(replaced(name, dtype)))
    assert packed.dtype == apart.dtype == dtype
    assert (packed - apart).abs().max() <= limit * apart.abs().max()


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", [*ARCHITECTURES, "granite"])
def test_decoding_calls_the_blocks_one_after_another_where_that_is_what_the_body_does(name, dtype):
    module = replaced(name, dtype)
    assert bool(blocks_of(module)) == (name != "gpt2")
    model = TransformersModel(module)
    straight = decoded(model, RAGGED)
    assert model._straight == (name in FAMILY)
    calls = []
    module.get_decoder().get_submodule("h.0" if name == "gpt2" else "layers.0").register_forward_hook(
        lambda *_: calls.append(1)
    )
    through_modules = decoded(model, RAGGED)
    assert len(calls) == 6  # hooks are called: the prefill, and five steps
    assert (straight - through_modules).abs().max() <= LIMITS[dtype] * through_modules.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_decoder_keeps_the_weights_it_began_with_and_nothing_else_does(dtype):
    model = TransformersModel(replaced("llama", dtype))
    before = decoded(model)
    decoder = model.decoder(6, 6)  # lives on, with its packed weights
    decoder.join(UNIFORM.prompts, 2)
    trained = logits_of(TransformersModel(model.module), UNIFORM)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.data.mul_(1.5)  # behind the back of every version counter
    decoder.step(torch.zeros(6, dtype=torch.int64))
    fresh = TransformersModel(copy.deepcopy(model.module))
    assert torch.equal(
        logits_of(TransformersModel(model.module), UNIFORM), logits_of(TransformersModel(fresh.module), UNIFORM)
    )
    assert not torch.equal(logits_of(TransformersModel(model.module), UNIFORM), trained)
    after = decoded(model)
    assert torch.equal(after, decoded(fresh))
    assert not torch.equal(after, before)


@pytest.mark.parametrize(
    ("kind", "replaced_blocks"),
    [("olmo2", 2), ("phi", 0), ("gemma", 4)],
    ids=["norms over all heads at once", "rotates half a head", "a family of its own"],
)
def test_what_computes_something_else_keeps_its_code(kind, replaced_blocks):
    torch.manual_seed(0)
    model = shrunk(kind)
    for parameter in model.parameters():  # norms of ones hide what they norm
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    theirs = plain_logits(model, RAGGED.prompts, RAGGED.group_ids, RAGGED.completion_ids, RAGGED.lengths)
    replace_blocks(model)
    assert len(blocks_of(model)) == replaced_blocks
    assert (logits_of(TransformersModel(model), RAGGED) - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_bits_stay_as_they_were(name, dtype):
    module = architecture(name, dtype)
    before = module(UNIFORM.completion_ids).logits
    replace_norms(module)
    assert torch.equal(module(UNIFORM.completion_ids).logits, before)


def bits_of(function, *inputs):
    """The value of a function and its gradients, for inputs that are the same each time."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    value = function(*leaves)
    wave = torch.cos(torch.arange(value.numel())).view_as(value).to(value.dtype)
    return [value, *torch.autograd.grad(value, leaves, wave)]


def linear_of_both(x, *matrices):
    return torch.cat([nn.functional.linear(x, matrix) for matrix in matrices], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_backward_passes_of_our_own_have_the_bits_of_autograd(dtype):
    torch.manual_seed(0)
    gate, up = torch.randn(2, 37, 48).to(dtype)
    matrix, heads, *tables = (torch.randn(shape).to(dtype) for shape in ((24, 48), (37, 3, 8), (37, 1, 8), (37, 1, 8)))
    silu = nn.functional.silu
    cases = [
        (
            lambda g, u, w, a: torch.cat(elementwise.gated_products(g, u, [w, a]), -1),
            lambda g, u, w, a: linear_of_both(silu(g) * u, w, a),
            (gate, up, matrix, matrix[:5] + 1),
        ),
        (elementwise.gated_product, lambda g, u: silu(g) * u, (gate, up)),
        (
            lambda x: elementwise.rotated(x, tuple(tables)),
            lambda x: x * tables[0] + x.roll(4, -1) * tables[1],
            (heads,),
        ),
    ]
    for own, plain, inputs in cases:
        assert all(map(torch.equal, bits_of(own, *inputs), bits_of(plain, *inputs)))
        with torch.no_grad():
            assert torch.equal(own(*inputs), plain(*inputs))


def kept_by(forward, module: nn.Module) -> list[Tensor]:
    """What a forward pass keeps for the backward one, parameters aside: a tensor of each storage."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.untyped_storage().data_ptr(), tensor), lambda tensor: tensor
    ):
        forward()
    return [tensor for address, tensor in kept.items() if address not in own]


@pytest.mark.parametrize(("name", "kept"), [("llama", 2), ("lora", 2), ("gemma", 4)])
def test_a_gated_mlp_keeps_its_input_gate_and_up(name, kept):
    module = shrunk("gemma" if name == "gemma" else "llama")
    config = module.config
    if name == "lora":
        trained_adapter(module)
    replace_blocks(module)
    mlp, tokens = module.model.layers[0].mlp, 50
    x = torch.randn(1, tokens, config.hidden_size, requires_grad=True)
    numbers = sum(tensor.numel() for tensor in kept_by(lambda: mlp(x), mlp))
    wanted, low_rank = tokens * (config.hidden_size + kept * config.intermediate_size), 12 * tokens
    assert wanted <= numbers <= wanted + (low_rank if name == "lora" else 0)


@pytest.mark.parametrize(
    ("dtype", "weight", "shape"),
    [
        (torch.float64, torch.float64, (2, 9, 24)),
        (torch.float32, torch.float32, (7, 3, 24)),
        (torch.float32, torch.bfloat16, (1, 600, 512)),
        (torch.bfloat16, torch.bfloat16, (40, 24)),
    ],
    ids=str,
)
def test_a_gpus_norm_has_the_value_and_gradients_of_the_cpus(dtype, weight, shape):
    torch.manual_seed(0)
    x, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(weight)
    scale = torch.randn(shape[-1]).to(weight).requires_grad_()
    leaf = x.clone().requires_grad_()
    wanted = rms_norm._RMSNorm.apply(leaf, scale, 1e-5)
    normed, inverse = rms_norm._normed(x, weight=scale, eps=1e-5)
    assert normed.dtype == wanted.dtype
    assert_close(normed, wanted)
    by_x, parts = rms_norm._differentiated(x, grad, inverse, weight=scale, with_weight=True)
    for found, right in zip((by_x, parts.sum(0)), torch.autograd.grad(wanted, (leaf, scale), grad), strict=True):
        assert_close(found, right, weight)
    assert by_x.dtype == dtype
    assert rms_norm._differentiated(x, grad, inverse, weight=scale, with_weight=False)[1] is None


def test_the_sum_of_many_layers_is_kept_in_float32_where_weights_are_bf16():
    module = shrunk("llama", num_hidden_layers=24, initializer_range=0.1).to(torch.bfloat16)
    module.model.embed_tokens.weight.data.mul_(8)  # as in a trained model, a layer adds little to a large sum
    rows = (UNIFORM.prompts, UNIFORM.group_ids, UNIFORM.completion_ids, UNIFORM.lengths)
    narrow = TransformersModel(module).completion_hidden(*rows)  # transformers' own norms are there still
    replace_norms(module)
    wide = TransformersModel(module).completion_hidden(*rows)
    exact = TransformersModel(copy.deepcopy(module).double()).completion_hidden(*rows)
    assert wide.dtype == narrow.dtype == torch.bfloat16
    assert (wide - exact).norm() < 0.8 * (narrow - exact).norm()
    assert module(UNIFORM.completion_ids).logits.dtype == torch.bfloat16  # for everybody else it is as it was


def layers(dtype, sizes=((12, True), (7, False), (129, True))):
    torch.manual_seed(0)
    return [nn.Linear(16, size, bias=bias).to(dtype) for size, bias in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [packing.PIECE_BYTES, 1000])
def test_a_packed_product_is_the_layers_side_by_side(
    dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PIECE_BYTES", piece)
    some = layers(dtype)
    x = torch.randn(5, 16, dtype=dtype)
    with torch.no_grad():
        given, wanted = PrepackedLinear(some, 5)(x), torch.cat([layer(x) for layer in some], -1)
        exact = torch.cat([layer.double()(x.double()) for layer in some], -1)
    torch.testing.assert_close(given, wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-2)
    assert float((given - exact).abs().max()) < (2e-2 if dtype == torch.bfloat16 else 1e-5)


def test_a_large_matrix_is_packed_by_pieces_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    half = layers(torch.bfloat16, ((256, False),))
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products in bfloat16, so nothing is packed")
    assert len(PrepackedLinear(half, 4)._pieces) == 1
    monkeypatch.setattr(packing, "PIECE_BYTES", half[0].weight.nbytes // 4)
    assert len(PrepackedLinear(half, 4)._pieces) == 4


LONG = made.token_rows((40, 25), (0, 0, 0, 0, 1, 1, 1, 1), (50, 31, 60, 44, 20, 60, 35, 52))


def value_and_gradients(module: nn.Module, generic: bool) -> list[Tensor]:
    logits = logits_of(GenericModel(module) if generic else TransformersModel(module), RAGGED)
    return [logits.detach(), *gradients(logits, module.parameters())]


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_values_and_gradients_are_the_same_bits(name: str, generic: bool) -> None:
    right, module = value_and_gradients(architecture(name), generic), architecture(name)
    assert recompute_layers(module) == 2
    assert all(torch.equal(*pair) for pair in zip(value_and_gradients(module, generic), right, strict=True))


def kept_bytes(module: nn.Module) -> int:
    given = (LONG.prompts, LONG.group_ids, LONG.completion_ids, LONG.lengths)
    kept = kept_by(lambda: TransformersModel(module).completion_hidden(*given), module)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept)


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
