"""Log-probabilities whose gradient is formed by hand: the same bits, and autograd's gradient."""

import gc
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fakes.tables import table
from oncurve.ops import entropy, entropy_of_logprobs, token_logprobs, token_logprobs_and_table
from oncurve.parallel import ALONE, LostRankError, World, shards_of
from oncurve.randomness import permutation, uniform
from oracles import plain_random
from oracles.plain_shards import in_pairs


def logits_and_ids(dtype=torch.float64, rows=9, vocabulary=13):
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)
    return logits.to(dtype).requires_grad_(), torch.randint(vocabulary, (rows,), generator=generator)


def weighted_gradient(measure, dtype, temperature):
    logits, ids = logits_and_ids(dtype)
    logprobs = measure(logits, ids, temperature)
    weights = torch.linspace(-2, 1, len(ids), dtype=logprobs.dtype)
    (gradient,) = torch.autograd.grad((logprobs * weights).sum(), logits)
    return logprobs.detach(), gradient


@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 0.02)]
)
def test_value_and_gradient_are_those_of_autograd(dtype, tolerance, temperature):
    ours = weighted_gradient(lambda *given: token_logprobs_and_table(*given)[0], dtype, temperature)
    theirs = weighted_gradient(token_logprobs, dtype, temperature)
    assert torch.equal(ours[0], theirs[0])
    assert ours[1].dtype == dtype
    assert torch.allclose(ours[1], theirs[1], rtol=tolerance, atol=tolerance)


def test_the_table_holds_every_tokens_logprob_and_no_gradient():
    logits, ids = logits_and_ids()
    _, table = token_logprobs_and_table(logits, ids, 0.7)
    assert not table.requires_grad
    assert torch.allclose(table, torch.log_softmax(logits / 0.7, -1), rtol=1e-14)
    assert torch.allclose(entropy_of_logprobs(table), entropy(logits, 0.7), rtol=1e-14)


def test_a_token_ruled_out_has_gradient_zero():
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], dtype=torch.float64, requires_grad=True)
    logprobs, table = token_logprobs_and_table(logits, torch.tensor([1]))
    logprobs.sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 2] == 0
    assert entropy_of_logprobs(table).isfinite().all()


@pytest.mark.usefixtures("shapes_unchecked")
def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"need ids \(2,\), got \(3,\)"):
        token_logprobs_and_table(torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64))


VECTORS = [*table("ops", "uniforms"), ((2**64 - 1, 2**40, 2**62, 7, 4095), "0x1.07db9a6951f0bp-1")]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("coordinates", "expected"), VECTORS)
def test_uniform_equals_the_frozen_vectors(coordinates, expected, device):
    seed, draw, prompt_id, sample_index, position = coordinates
    row = [torch.tensor([value], device=device) for value in (prompt_id, sample_index)]
    assert uniform(seed, draw, *row, position).item().hex() == expected
    assert uniform(seed, draw, *row, torch.tensor([position], device=device)).item().hex() == expected


def test_permutation_equals_the_frozen_vectors():
    assert permutation(0, 0, 10).tolist() == [1, 2, 4, 6, 9, 8, 3, 0, 5, 7]
    assert permutation(7, 3, 12).tolist() == [3, 8, 11, 0, 2, 7, 9, 1, 6, 10, 4, 5]


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    draw=st.integers(0, 2**32),
    prompt_id=st.integers(-(2**63), 2**63 - 1),
    sample_index=st.integers(0, 2**20),
    position=st.integers(0, 2**20),
)
def test_uniform_is_the_plain_integer_hash(seed, draw, prompt_id, sample_index, position):
    fast = uniform(seed, draw, torch.tensor([prompt_id]), torch.tensor([sample_index]), position).item()
    assert fast == plain_random.uniform(seed, draw, prompt_id, sample_index, position)


@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_permutation_is_a_shuffle_and_equals_the_plain_one(n):
    order = permutation(3, 5, n).tolist()
    assert sorted(order) == list(range(n))
    assert order == plain_random.permutation(3, 5, n)


@given(power=st.integers(0, 6), ranks=st.integers(1, 64))
def test_every_shard_has_one_rank_and_every_rank_a_subtree_where_there_are_enough(power: int, ranks: int) -> None:
    count = 2**power
    owned = [own for rank in range(ranks) if (own := shards_of(rank, ranks, count)) or not rank]
    assert len(owned) == min(ranks, count)
    assert [index for own in owned for index in own] == list(range(count))
    for own in owned:
        assert len(own) & (len(own) - 1) == 0
        assert own.start % len(own) == 0
    assert max(map(len, owned)) <= 2 * min(map(len, owned))


@pytest.mark.parametrize("count", [0, 3, 12, -4])
def test_shards_that_are_no_power_of_two_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        ALONE.tree_sum(lambda index: [torch.zeros(1)], count)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 8, 16])
def test_a_sum_has_the_bits_of_the_plain_tree_and_not_of_a_running_sum(count: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(count)
    parts = torch.randn(count, 300, generator=generator, dtype=torch.float64).exp().to(dtype)
    given = [part.clone() for part in parts]
    ALONE.tree_sum(lambda index: [given[index][:100], given[index][100:]], count)
    assert torch.equal(given[-1], in_pairs(list(parts)))
    if count > 2:
        assert not torch.equal(given[-1], sum(parts[1:], parts[0]))


@pytest.mark.slow
def test_a_tree_keeps_no_more_copies_than_it_has_levels() -> None:
    size, count = 12_347, 16
    gradient = torch.zeros(size)
    alive: list[int] = []

    def leaf(index: int) -> list[torch.Tensor]:
        alive.append(sum(type(found) is torch.Tensor and found.shape == (size,) for found in gc.get_objects()))
        return [gradient.fill_(index)]

    ALONE.tree_sum(leaf, count)
    assert alive[0] == 1  # the gradient itself
    assert max(alive) == 1 + int(math.log2(count))
    assert float(gradient[0]) == sum(range(count))


def test_a_process_alone_has_no_others_to_send_to() -> None:
    world = World()
    world.broadcast([torch.zeros(3)])
    with pytest.raises(LostRankError, match="left the world"):
        world.send([torch.zeros(3)], 1)


def test_the_backward_may_be_repeated_and_changes_nothing():
    logits, ids = logits_and_ids()
    logprobs, table = token_logprobs_and_table(logits, ids)
    before = table.clone()
    first, again = (torch.autograd.grad(logprobs.sum(), logits, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(table, before)
