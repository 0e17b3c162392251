"""FlexAttention over the flat row: the same hidden states and gradients as the padded rows, and exact lists of blocks.

On a CPU FlexAttention has no backward, so gradients go through the same mask written out.
"""

import pytest
import torch

from fakes.architectures import ARCHITECTURES, ROWS, architecture, token_rows
from fakes.tolerance import assert_close
from oncurve.models.attention import cpu_kernel as room, flex
from oncurve.models.attention.cpu_kernel import fits, rows_attention
from oncurve.models.attention.flex import BLOCK, FlexContext, trial
from oncurve.models.attention.hook import register, switched
from oncurve.models.attention.merge import attend_part, merge_softmax
from oncurve.models.attention.packed_rows import PackedContext, additive
from oncurve.models.layers.rms_norm import replace_norms
from oracles.plain_flex import dense_flex_attention

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
UNFUSED = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
LONG = token_rows((50, 9, 33), (0, 0, 1, 2, 2, 2), (40, 6, 17, 64, 1, 23))


def hidden_of(module, context):
    register()
    body = module.get_decoder()
    with switched(body.config):
        outputs = body(
            input_ids=context.ids[None],
            position_ids=context.positions[None],
            use_cache=False,
            oncurve_context=context,
        )
    return outputs[0][0].index_select(0, context.predictors)


def arguments(rows, device="cpu"):
    prompts = [prompt.to(device) for prompt in rows.prompts]
    return prompts, rows.group_ids.to(device), rows.completion_ids.to(device), rows.lengths.to(device)


def model_of(name, dtype=torch.float64):
    module = architecture(name, dtype)
    replace_norms(module)
    return module


def relative(ours, theirs):
    return float((ours - theirs).double().norm() / theirs.double().norm())


@UNFUSED
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_hidden_states_are_those_of_the_padded_rows(name, rows):
    module = model_of(name)
    ours = hidden_of(module, FlexContext(*arguments(ROWS[rows])))
    assert relative(ours, hidden_of(module, PackedContext(*arguments(ROWS[rows])))) < 1e-12


@pytest.mark.parametrize("name", ["qwen2", "mistral"])
def test_gradients_are_those_of_the_padded_rows(name):
    module = model_of(name)
    contexts = [
        FlexContext(*arguments(LONG), kernel=dense_flex_attention, block=16),
        PackedContext(*arguments(LONG)),
    ]
    gradients = []
    for context in contexts:
        hidden = hidden_of(module, context)
        weights = torch.cos(torch.arange(hidden.numel(), dtype=hidden.dtype)).view_as(hidden)
        gradients.append(torch.autograd.grad((hidden * weights).sum(), list(module.get_decoder().parameters())))
    for left, right in zip(*gradients, strict=True):
        assert relative(left, right) < 1e-10


@UNFUSED
@torch.no_grad()
def test_the_mask_written_out_is_the_mask():
    generator = torch.Generator().manual_seed(0)
    context = FlexContext(*arguments(LONG), block=16)
    query, key, value = (torch.randn(len(context.ids), heads, 8, generator=generator) for heads in (4, 2, 2))
    twin = FlexContext(*arguments(LONG), kernel=dense_flex_attention, block=16)
    for window in (None, 5):
        asked = (0, query, key, value, 0.3, window)
        assert_close(context.attend(*asked), twin.attend(*asked))


@pytest.mark.parametrize("window", [None, 1, 5, 30])
@pytest.mark.parametrize("block", [1, 4, 16, BLOCK])
@pytest.mark.parametrize("rows", [*ROWS.values(), LONG], ids=[*ROWS, "long"])
def test_the_lists_of_blocks_leave_nothing_out_and_call_nothing_full_that_is_not(rows, block, window):
    context = FlexContext(*arguments(rows), block=block)
    tokens = torch.arange(len(context.ids))
    zero = torch.zeros((), dtype=torch.int64)
    dense = context.allowed(window)(zero, zero, tokens[:, None], tokens[None, :])
    assert bool(dense.diagonal().all())  # nobody sees nothing
    tiles = dense.unflatten(0, (-1, block)).unflatten(2, (-1, block)).transpose(1, 2).flatten(2)
    mask = context._block_mask(window)
    partial, full = (
        listed(*lists)
        for lists in ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices))
    )
    assert not bool((partial & full).any())
    assert bool((tiles.all(2) | ~full).all())
    assert bool((partial | full | ~tiles.any(2)).all())
    if block in (4, 16) and window is None:
        kept = int((partial | full).sum())
        assert kept <= 1.5 * int(tiles.any(2).sum()) + 4  # and little is kept in vain
    if block == 1:
        assert torch.equal(partial | full, tiles[..., 0])


def listed(counts, numbers):
    counts, numbers = counts[0, 0], numbers[0, 0].long()
    chosen = torch.arange(numbers.shape[1])[None, :] < counts[:, None]
    return torch.zeros(numbers.shape, dtype=torch.bool).scatter_(1, numbers, chosen)


def broken(*args, **kwargs):
    raise RuntimeError("no compiler\nfor miles")


def a_little_off(*args, **kwargs):
    return 1.01 * dense_flex_attention(*args, **kwargs)


@pytest.mark.parametrize("windowed", [False, True])
def test_a_kernel_is_tried_before_it_is_believed(windowed):
    asked = ((4, 2, 8, 8), torch.float32, torch.device("cpu"), windowed)
    assert trial(dense_flex_attention, *asked) is None
    assert trial(broken, *asked) == "RuntimeError: no compiler"
    assert trial(a_little_off, *asked).startswith("it differs from the padded rows by 1.0e-02")


def test_padded_rows_step_in_for_a_kernel_that_failed_its_trial(monkeypatch):
    monkeypatch.setattr(flex, "_COMPILED", [broken])
    monkeypatch.setattr(flex, "_TRIED", {})
    module = model_of("mistral")
    with pytest.warns(UserWarning, match="attention runs on padded rows: RuntimeError: no compiler"):
        ours = hidden_of(module, FlexContext(*arguments(LONG), kernel=broken))
    assert_close(ours, hidden_of(module, PackedContext(*arguments(LONG))))  # whole blocks are products of another shape


@NEEDS_CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_on_cuda_values_and_gradients_are_those_of_the_mask_written_out(name, dtype):
    module = model_of(name, dtype).to("cuda")
    close = 1e-3 if dtype == torch.float32 else 5e-2
    results = []
    for kernel in (None, dense_flex_attention):
        hidden = hidden_of(module, FlexContext(*arguments(LONG, "cuda"), kernel=kernel))
        weights = torch.cos(torch.arange(hidden.numel(), device="cuda")).view_as(hidden).to(dtype)
        gradients = torch.autograd.grad((hidden * weights).sum(), list(module.get_decoder().parameters()))
        results.append([hidden.detach(), torch.cat([gradient.flatten() for gradient in gradients])])
    for left, right in zip(*results, strict=True):
        assert relative(left, right) < close
    assert set(flex._TRIED.values()) == {None}


def whole_rows(prefix, suffix, groups):
    return suffix if prefix is None else torch.cat([prefix[groups], suffix], 1)


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
    prefixes = [torch.randn(3, prefix, kv_heads, size).to(dtype) if prefix else None for _ in range(2)]
    mask = None
    if prefix:
        lengths = torch.tensor([prefix, prefix - 2, prefix - 1]) if ragged else torch.full((3,), prefix)
        before = (torch.arange(prefix)[None] < lengths[groups][:, None])[:, None, :].expand(-1, steps, -1)
        own = torch.ones(steps, steps).tril().bool().expand(rows, -1, -1)
        mask = additive(torch.cat([before, own], 2), dtype)[:, None]
        mask = mask if ragged else mask[:1]
    leaves = [x.requires_grad_() for x in (query, *sides, *prefixes) if x is not None]
    keys, values = (prefixes[0], sides[0]), (prefixes[1], sides[1])
    return leaves, (query, keys, values), groups, mask


@pytest.mark.parametrize("at_once", [1 << 24, 1500])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("prefix", [0, 7])
def test_it_equals_the_plain_attention_in_value_and_gradient(prefix, ragged, at_once, monkeypatch):
    monkeypatch.setattr(room, "_AT_ONCE", at_once)  # the smaller one: a row or two at a time
    leaves, inputs, groups, mask = example(prefix, torch.float64, ragged)
    ours = rows_attention(*inputs, groups if prefix else None, mask, 0.3)
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
