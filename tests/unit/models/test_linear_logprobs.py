"""The fused head against all logits at once: values and gradients, however the vocabulary is cut into blocks."""

import pytest
import torch
from torch import nn

from oncurve.batching import collate
from oncurve.models.head import linear_logprobs as fused_head
from oncurve.models.head.gradient_buffers import keep_gradient, kept_bytes, kept_gradient
from oncurve.models.head.kept_sets import KeptSets
from oncurve.models.head.linear_logprobs import linear_logprobs, matrix_of
from oncurve.types import Completion, Group, Prompt, Score
from oracles.plain_head import plain_logprobs
from oracles.plain_truncation import recorded

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
TOKENS, VOCABULARY, WIDTH = 37, 203, 24
ONE_AT_A_TIME, SOME, ALL = 1, 5000, 1 << 24


def inputs(dtype=torch.float64, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64) / 2
    ids = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    leaves = [x.to(device, dtype).requires_grad_() for x in (hidden, weight)]
    return *leaves, ids.to(device)


def weighted(logprobs, entropy, of_entropy):
    cosines = torch.cos(torch.arange(TOKENS, dtype=logprobs.dtype, device=logprobs.device))
    return (logprobs * cosines).sum() + of_entropy * (entropy * cosines.flip(0)).sum()


def relative(ours, theirs):
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def kept_sets(ids, device="cpu"):
    """Return the token itself and some others for each, as a batch of one row holds them, and the same as lists."""
    generator = torch.Generator().manual_seed(3)
    others = torch.rand(TOKENS, VOCABULARY, generator=generator) < torch.linspace(0, 1, TOKENS)[:, None]
    sets = [sorted({token, *row.nonzero().flatten().tolist()}) for token, row in zip(ids.tolist(), others, strict=True)]
    sizes, listed = recorded(sets, [len(one) > VOCABULARY // 2 for one in sets], VOCABULARY)
    completion = Completion(tuple(ids.tolist()), "", (0.0,) * TOKENS, "eos", 0, 0, kept_sizes=sizes, kept_ids=listed)
    batch = collate([Group(Prompt(0, "", (1,)), (completion,), (Score(1.0),))])
    return KeptSets.of(batch, batch.slots(), torch.device(device)), sets


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of_entropy", [0.0, 0.3])
@pytest.mark.parametrize("kept", [0, ALL])
@pytest.mark.parametrize("workspace", [ONE_AT_A_TIME, SOME, ALL])
@pytest.mark.parametrize(("temperature", "over_sets"), [(1.0, False), (0.7, False), (0.7, True)])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_values_and_gradients_are_those_of_all_logits_at_once_or_of_those_in_the_kept_sets(
    dtype, close, temperature, over_sets, workspace, kept, of_entropy, device
):
    hidden, weight, ids = inputs(dtype, device)
    sets, listed = kept_sets(ids, device) if over_sets else (None, None)
    ours = linear_logprobs(
        hidden, weight, ids, temperature, with_entropy=True, kept=sets, kept_bytes=kept, workspace_bytes=workspace
    )
    theirs = plain_logprobs(hidden, weight, ids, temperature, listed)
    gradients = [
        torch.autograd.grad(weighted(*pair, of_entropy), (hidden, weight), retain_graph=True) for pair in (ours, theirs)
    ]
    for left, right in (*zip(ours, theirs, strict=True), *zip(*gradients, strict=True)):
        assert relative(left.detach(), right.detach()) < close


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kept", [0, ALL])
def test_bf16_is_as_close_as_bf16_logits_allow(kept, device):
    hidden, weight, ids = inputs(torch.bfloat16, device)
    ours = linear_logprobs(hidden, weight, ids, with_entropy=True, kept_bytes=kept, workspace_bytes=SOME)
    theirs = plain_logprobs(hidden, weight, ids, 1.0)
    assert all(x.dtype == torch.float32 for x in ours)
    assert (ours[0] - theirs[0]).abs().mean() < 1e-5
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    wanted = torch.autograd.grad(weighted(*plain_logprobs(*exact, ids, 1.0), 0.0), exact)
    got = torch.autograd.grad(weighted(*ours, 0.0), (hidden, weight))
    for left, right in zip(got, wanted, strict=True):
        assert torch.nn.functional.cosine_similarity(left.double().flatten(), right.flatten(), dim=0) > 0.9999


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("workspace", [ONE_AT_A_TIME, SOME, ALL])
def test_kept_logits_change_no_bit(workspace, dtype):
    """So the KL of a policy to itself is 0, though its reference is scored without a gradient."""

    def found(kept):
        hidden, weight, ids = inputs(dtype)
        logprobs, entropy = linear_logprobs(
            hidden, weight, ids, with_entropy=True, kept_bytes=kept, workspace_bytes=workspace
        )
        return [logprobs, entropy, *torch.autograd.grad(weighted(logprobs, entropy, 0.3), (hidden, weight))]

    with torch.no_grad():
        scored = linear_logprobs(*inputs(dtype), with_entropy=True, workspace_bytes=workspace)
    kept, again = found(ALL), found(0)
    assert all(torch.equal(left, right) for left, right in zip(kept, again, strict=True))
    assert all(torch.equal(left, right) for left, right in zip(kept, scored, strict=False))


def test_a_token_that_is_nearly_certain_keeps_its_small_gradient():
    weight = torch.tensor([[9.0], [0.0]], dtype=torch.bfloat16).requires_grad_()
    hidden = torch.ones(1, 1, dtype=torch.bfloat16)
    logprobs, _ = linear_logprobs(hidden, weight, torch.tensor([0]))
    logprobs.sum().backward()
    assert weight.grad[0].item() == pytest.approx(1 / (1 + torch.tensor(9.0).exp().item()), rel=1e-2)


def test_half_precision_weights_get_the_gradient_they_accumulate():
    hidden, weight, ids = inputs(torch.bfloat16)
    linear_logprobs(hidden, weight, ids)[0].sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    weight.grad, weight.grad_dtype = None, torch.float32
    embedded = torch.nn.functional.embedding(ids, weight)  # tied: the embedding's gradient comes in bf16
    linear_logprobs(embedded, weight, ids)[0].sum().backward()
    assert weight.grad.dtype == torch.float32
    embedded = torch.nn.functional.embedding(ids, 1 * weight)  # not a leaf: it has no dtype of its own to ask for
    linear_logprobs(embedded, 1 * weight, ids)[0].sum().backward()
    assert weight.grad.isfinite().all()


def test_logits_never_exist_as_a_whole(monkeypatch):
    shapes = []
    product = fused_head._product

    def watched(hidden, matrix, work):
        shapes.append((len(hidden), len(matrix)))
        return product(hidden, matrix, work)

    monkeypatch.setattr(fused_head, "_product", watched)
    hidden, weight, ids = inputs(torch.float32)
    limit = 64 * TOKENS * 4
    linear_logprobs(hidden, weight, ids, kept_bytes=0, workspace_bytes=limit)[0].sum().backward()
    assert max(tokens * width for tokens, width in shapes) * 4 <= limit
    assert sum(width for _, width in shapes) == 2 * VOCABULARY  # once forward, once backward
    shapes.clear()
    linear_logprobs(hidden, weight, ids, kept_bytes=ALL)[0].sum().backward()
    assert sum(width for _, width in shapes) == VOCABULARY  # kept
    shapes.clear()
    with torch.no_grad():
        assert not linear_logprobs(hidden, weight, ids, kept_bytes=ALL, workspace_bytes=limit)[0].requires_grad
    assert len(shapes) > 1


def test_a_head_that_does_more_than_multiply_has_no_matrix():
    plain = torch.nn.Linear(4, 7, bias=False)
    assert matrix_of(plain) is plain.weight
    assert matrix_of(torch.nn.Linear(4, 7)) is None
    assert matrix_of(torch.nn.Sequential(plain)) is None
    plain.register_forward_hook(lambda layer, args, output: None)
    assert matrix_of(plain) is None


def linear(dtype=torch.bfloat16, kept=True):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).to(dtype)
    if kept:
        for parameter in layer.parameters():
            keep_gradient(parameter, torch.float32 if dtype == torch.bfloat16 else dtype)
    return layer


def head_inputs(tokens=7, vocabulary=1100, dtype=torch.bfloat16):
    torch.manual_seed(1)
    hidden = torch.randn(tokens, 16, dtype=dtype)
    weight = nn.Parameter(torch.randn(vocabulary, 16).to(dtype))
    return hidden, weight, torch.randint(0, vocabulary, (tokens,))


def test_the_gradient_is_autograds_widened_and_summed_in_float32() -> None:
    ours, theirs = linear(), linear(kept=False)
    for parameter in theirs.parameters():
        parameter.grad_dtype = torch.float32
    for scale in (1.0, 0.003, 50.0):
        x = scale * torch.randn(5, 6).bfloat16()
        for layer in (ours, theirs):
            layer(x).square().sum().backward()
    for given, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert given.grad.dtype == torch.float32
        assert torch.equal(given.grad, right.grad)


def test_it_is_one_tensor_from_update_to_update_and_forgets_the_last_ones_numbers() -> None:
    layer, seen = linear(), []
    assert kept_bytes(layer.parameters()) == 0
    for _ in range(3):
        layer(torch.ones(1, 6, dtype=torch.bfloat16)).sum().backward()
        seen.append((layer.weight.grad.data_ptr(), layer.weight.grad.clone()))
        layer.weight.grad.fill_(float("nan"))  # what an optimizer leaves behind
        layer.weight.grad = None
    assert len({place for place, _ in seen}) == 1
    assert all(torch.equal(numbers, torch.ones(4, 6)) for _, numbers in seen)
    assert kept_bytes(layer.parameters()) == 4 * (24 + 4)
    assert kept_gradient(layer.weight).data_ptr() == seen[0][0]


@pytest.mark.parametrize("passes", [1, 3])
def test_the_heads_gradient_goes_there_by_pieces(passes: int) -> None:
    hidden, weight, ids = head_inputs()
    plain = nn.Parameter(weight.detach().clone())
    plain.grad_dtype = torch.float32
    keep_gradient(weight, torch.float32)
    for number in range(passes):
        for matrix in (weight, plain):
            workspace = 7 * 2 * 128  # nine blocks
            logprobs, _ = linear_logprobs(hidden + number, matrix, ids, kept_bytes=0, workspace_bytes=workspace)
            logprobs.sum().backward()
    assert weight.grad is kept_gradient(weight)
    assert torch.equal(weight.grad, plain.grad)
