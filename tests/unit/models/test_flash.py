"""Flash attention over the flat row, by kernels written out: values and gradients of the padded rows, in any order."""

import pytest
import torch

from fakes.architectures import ARCHITECTURES, ROWS, architecture, relative, token_rows
from oncurve.models.attention import cpu_kernel as room, flash
from oncurve.models.attention.cpu_kernel import fits, rows_attention
from oncurve.models.attention.flash import CUDA_KERNELS, FlashContext, Kernels, Repeats, trial
from oncurve.models.attention.hook import switched
from oncurve.models.attention.packed_rows import PackedContext, additive
from oncurve.models.decode.cached_decoder import attend_part, merge_softmax
from oncurve.models.layers.rms_norm import replace_norms
from oracles.plain_flash import plain_backward, plain_forward

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CPU = torch.device("cpu")
PLAIN = Kernels(plain_forward, plain_backward)
LONG = token_rows((50, 9, 33), (0, 0, 1, 2, 2, 2), (40, 6, 17, 64, 1, 23))


def context_of(kind, rows, kernels=PLAIN, device=CPU):
    context = kind(rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths, device)
    context.kernels = kernels
    return context


def hidden_of(module, context):
    body = module.get_decoder()
    with switched(body.config):
        outputs = body(
            input_ids=context.ids[None], position_ids=context.positions[None], use_cache=False, oncurve_context=context
        )
    return context.predicting(outputs[0][0])


def results_of(module, context):
    """Return the hidden states that predict, and the gradients of a sum in which each of them has another weight."""
    hidden = hidden_of(module, context)
    weights = torch.cos(torch.arange(hidden.numel(), device=hidden.device)).view_as(hidden).to(hidden.dtype)
    return [hidden.detach(), *torch.autograd.grad((hidden * weights).sum(), list(module.get_decoder().parameters()))]


def model_of(name, dtype=torch.float64):
    module = architecture(name, dtype)
    replace_norms(module)
    return module


@pytest.mark.parametrize("rows", [*ROWS.values(), LONG], ids=[*ROWS, "long"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_hidden_states_and_gradients_are_those_of_the_padded_rows(name, rows):
    module = model_of(name)
    ours, theirs = (results_of(module, context_of(kind, rows)) for kind in (FlashContext, PackedContext))
    assert relative(ours, theirs) < 1e-12


@pytest.mark.parametrize("window", [None, 1, 5, 30])
@pytest.mark.parametrize("rows", [*ROWS.values(), LONG], ids=[*ROWS, "long"])
def test_gradients_of_queries_keys_and_values_are_those_of_the_padded_rows(rows, window):
    contexts = [context_of(kind, rows) for kind in (FlashContext, PackedContext)]
    generator = torch.Generator().manual_seed(0)
    shape = len(contexts[0].ids), 8
    inputs = [
        torch.randn(shape[0], heads, shape[1], generator=generator, dtype=torch.float64).requires_grad_()
        for heads in (4, 2, 2)
    ]
    results = []
    for context in contexts:
        out = context.attend(0, *inputs, 0.3, window)
        results.append([out, *torch.autograd.grad((out * torch.cos(out.detach())).sum(), inputs)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_torch_takes_the_arguments_of_its_kernels():
    meta = torch.device("meta")
    context = context_of(FlashContext, LONG, CUDA_KERNELS, meta)
    shapes = [(len(context.ids), heads, 64) for heads in (4, 2, 2)]
    inputs = [torch.empty(shape, dtype=torch.bfloat16, device=meta, requires_grad=True) for shape in shapes]
    out = context.in_one_call(*inputs, 0.3, 5)
    gradients = torch.autograd.grad(out, inputs, torch.empty_like(out))
    assert [list(x.shape) for x in (out, *gradients)] == [list(shapes[0]), *map(list, shapes)]


def test_what_is_taken_several_times_gets_the_sum_of_its_gradients():
    index = torch.tensor([2, 0, 4, 2, 3, 2, 0])  # row 1 is never taken; rows from 3 on once
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    ours, theirs = Repeats(index, 3, 5).take(x), x.index_select(0, index)
    assert torch.equal(ours, theirs)
    grad = torch.randn(7, 2, dtype=torch.float64)
    torch.testing.assert_close(*(torch.autograd.grad(out, x, grad)[0] for out in (ours, theirs)))


def broken(*args, **kwargs):
    raise RuntimeError("no kernel\nfor miles")


def a_little_off(*args, **options):
    out, *others = plain_forward(*args, **options)
    return 1.1 * out, *others


@pytest.mark.parametrize("windowed", [False, True])
def test_kernels_are_tried_before_they_are_believed(windowed):
    asked = ((4, 2, 8), torch.float32, CPU, windowed)
    assert trial(PLAIN, *asked) is None
    assert trial(Kernels(broken, broken), *asked) == "RuntimeError: no kernel"
    assert trial(Kernels(a_little_off, plain_backward), *asked).startswith("it differs from the padded rows by 1.0e-01")


def test_padded_rows_step_in_for_kernels_that_failed_their_trial(monkeypatch):
    monkeypatch.setattr(flash, "_TRIED", {})
    module = model_of("mistral", torch.bfloat16)
    with pytest.warns(UserWarning, match="attention runs on padded rows: NotImplementedError"):
        ours = results_of(module, context_of(FlashContext, LONG, CUDA_KERNELS))
    assert torch.equal(ours[0], results_of(module, context_of(PackedContext, LONG))[0])


def test_the_backward_kernel_runs_in_order_and_the_setting_is_put_back():
    seen = []

    def backward(*args, **options):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return plain_backward(*args, **options)

    results_of(model_of("qwen2"), context_of(FlashContext, LONG, Kernels(plain_forward, backward)))
    assert seen == [True, True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


@NEEDS_CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_on_cuda_values_and_gradients_are_those_of_the_padded_rows_and_always_the_same_bits(name, dtype):
    cuda = torch.device("cuda", 0)
    module = model_of(name, dtype).to(cuda)
    ours, again, theirs = (
        results_of(module, context_of(kind, LONG, CUDA_KERNELS, cuda))
        for kind in (FlashContext, FlashContext, PackedContext)
    )
    assert relative(ours, theirs) < (1e-3 if dtype == torch.float32 else 5e-2)
    assert set(flash._TRIED.values()) <= {None}
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))


def whole_rows(prefix, suffix, groups):
    return torch.cat([prefix[groups], suffix], 1)


def plain(query, keys, values, groups, mask, scaling):
    """Softmax of scores, head by head, in the dtype given."""
    key, value = whole_rows(*keys, groups), whole_rows(*values, groups)
    shared = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(shared, 2), value.repeat_interleave(shared, 2)
    scores = torch.einsum("rchd,rlhd->rhcl", query, key) * scaling
    causal = additive(torch.ones(query.shape[1], key.shape[1]).tril().bool(), query.dtype)
    weights = torch.softmax(scores + (causal if mask is None else mask), -1)
    return torch.einsum("rhcl,rlhd->rchd", weights, value)


def example(prefix, dtype, ragged=False):
    torch.manual_seed(0)
    groups = torch.tensor([0, 0, 1, 1, 1, 2])
    rows, steps, heads, kv_heads, size = 6, 5, 4, 2, 8
    query = torch.randn(rows, steps, heads, size).to(dtype)
    sides = [torch.randn(rows, steps, kv_heads, size).to(dtype) for _ in range(2)]
    prefixes = [torch.randn(3, prefix, kv_heads, size).to(dtype) for _ in range(2)]
    mask = None
    if prefix:
        lengths = torch.tensor([prefix, prefix - 2, prefix - 1]) if ragged else torch.full((3,), prefix)
        before = (torch.arange(prefix)[None] < lengths[groups][:, None])[:, None, :].expand(-1, steps, -1)
        own = torch.ones(steps, steps).tril().bool().expand(rows, -1, -1)
        mask = additive(torch.cat([before, own], 2), dtype)[:, None]
        mask = mask if ragged else mask[:1]
    leaves = [x.requires_grad_() for x in (query, *sides, *prefixes)]
    keys, values = (prefixes[0], sides[0]), (prefixes[1], sides[1])
    return leaves, (query, keys, values), groups, mask


@pytest.mark.parametrize("at_once", [1 << 24, 1500])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("prefix", [0, 7])
def test_it_equals_the_plain_attention_in_value_and_gradient(prefix, ragged, at_once, monkeypatch):
    monkeypatch.setattr(room, "_AT_ONCE", at_once)  # the smaller one: a row or two at a time
    leaves, inputs, groups, mask = example(prefix, torch.float64, ragged)
    ours = rows_attention(*inputs, groups, mask, 0.3)
    theirs = plain(*inputs, groups, mask, 0.3)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    arrived = torch.randn_like(ours)
    for left, right in zip(
        torch.autograd.grad(ours, leaves, arrived), torch.autograd.grad(theirs, leaves, arrived), strict=True
    ):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


def test_in_bf16_its_gradient_points_where_the_exact_one_does():
    leaves, inputs, groups, mask = example(7, torch.bfloat16)
    exact_leaves = [x.detach().double().requires_grad_() for x in leaves]
    query, key, value, prefix_key, prefix_value = exact_leaves
    exact = plain(query, (prefix_key, key), (prefix_value, value), groups, mask.double(), 0.3)
    ours = rows_attention(*inputs, groups, mask, 0.3)
    assert ours.dtype == torch.bfloat16
    gradients = torch.autograd.grad(ours, leaves, torch.ones_like(ours))
    wanted = torch.autograd.grad(exact, exact_leaves, torch.ones_like(exact))
    for left, right in zip(gradients, wanted, strict=True):
        assert torch.nn.functional.cosine_similarity(left.double().flatten(), right.flatten(), 0) > 0.9999


def test_it_is_for_half_precision_on_the_cpu():
    half = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    assert fits(half, half)
    assert not fits(half.float(), half.float())
    assert not fits(half, half[..., :4])


def parts(dtype, value_size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, value_size), (2, 3, 4, 8), (2, 3, 4, value_size))
    return [torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]


def plain_whole(query, keys, values, scaling, mask):
    scores = query @ keys.transpose(2, 3) * scaling
    return torch.softmax(scores.masked_fill(mask, -torch.inf), -1) @ values


@pytest.mark.parametrize("value_size", [8, 6], ids=["fused", "plain"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_two_parts_are_the_whole(dtype, tolerance, value_size):
    query, key, value, other_key, other_value = parts(dtype, value_size)
    hidden = torch.tensor([[0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0]], dtype=torch.bool)
    mask = torch.zeros(2, 7, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)[:, None, None]
    one = attend_part(query, key, value, 0.3, mask)
    assert one[1].dtype == torch.promote_types(dtype, torch.float32)
    merged = merge_softmax(*one, *attend_part(query, other_key, other_value, 0.3))
    keys, values = torch.cat([key, other_key], 2).double(), torch.cat([value, other_value], 2).double()
    unseen = torch.nn.functional.pad(hidden, (0, 4))[:, None, None]
    expected = plain_whole(query.double(), keys, values, 0.3, unseen)
    torch.testing.assert_close(merged.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("value_size", [8, 6], ids=["fused", "plain"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_part_that_is_masked_whole_counts_nothing(dtype, value_size):
    query, key, value, other_key, other_value = parts(dtype, value_size)
    mask = torch.full((2, 1, 1, 7), torch.finfo(dtype).min, dtype=dtype)
    other = attend_part(query, other_key, other_value, 0.3)
    merged = merge_softmax(*attend_part(query, key, value, 0.3, mask), *other)
    assert torch.equal(merged, other[0])
