"""The tree of a sum over shards: who computes what, in which order it is added, and what is kept meanwhile."""

import gc
import math

import pytest
import torch
from hypothesis import given, strategies as st

from oncurve.parallel import ALONE, LostRankError, World, shards_of
from oracles.plain_shards import in_pairs


@given(power=st.integers(0, 6), ranks=st.integers(1, 64))
def test_every_shard_has_one_rank_and_every_rank_a_subtree(power: int, ranks: int) -> None:
    count = 2**power
    if ranks > count:
        with pytest.raises(ValueError, match=f"{ranks} ranks need as many shards at least, and there are {count}"):
            shards_of(0, ranks, count)
        return
    owned = [shards_of(rank, ranks, count) for rank in range(ranks)]
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


def test_a_process_alone_agrees_with_itself_and_has_no_others_to_send_to() -> None:
    world = World()
    assert world.agree(True)
    assert not world.agree(False)
    world.broadcast([torch.zeros(3)])
    with pytest.raises(LostRankError, match="left the world"):
        world.send([torch.zeros(3)], 1)
