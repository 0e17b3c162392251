import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from oncurve.randomness import permutation, row_keys, uniform, uniform_at
from oracles import plain_random

VECTORS = [
    ((0, 0, 0, 0, 0), "0x1.86b63ae811ee4p-3"),
    ((1, 0, 0, 0, 0), "0x1.4fdc6514dc853p-1"),
    ((0, 1, 0, 0, 0), "0x1.d158ce50993d1p-1"),
    ((0, 0, 1, 0, 0), "0x1.699e1c09b0321p-1"),
    ((0, 0, 0, 1, 0), "0x1.3cd736a1bc8dap-2"),
    ((0, 0, 0, 0, 1), "0x1.e750e4c62d343p-1"),
    ((1234, 56, 789, 3, 511), "0x1.85d96ca4f3055p-1"),
    ((2**64 - 1, 2**40, 2**62, 7, 4095), "0x1.07db9a6951f0bp-1"),
    ((-5, 0, 3, 1, 2), "0x1.d9710e690959ep-2"),
]

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


def test_first_place_of_a_permutation_is_uniform():
    firsts = torch.tensor([int(permutation(0, epoch, 8)[0]) for epoch in range(4000)])
    counts = torch.bincount(firsts, minlength=8).double()
    assert ((counts - 500) ** 2 / 500).sum() < 24.3  # chi-square, 7 degrees of freedom, p = 0.001


def grid(draws=1, prompts=1, samples=1, positions=1):
    """Uniforms of all coordinates below the given counts, shape (draws, prompts, samples, positions)."""
    prompt_ids, sample_index = (
        axis.flatten() for axis in torch.meshgrid(torch.arange(prompts), torch.arange(samples), indexing="ij")
    )
    rows = [
        uniform_at(row_keys(11, draw, prompt_ids, sample_index)[:, None], torch.arange(positions))
        for draw in range(draws)
    ]
    return torch.stack(rows).view(draws, prompts, samples, positions)


AXES = ["draws", "prompts", "samples", "positions"]


@pytest.mark.parametrize("axis", AXES)
def test_uniforms_along_each_coordinate_pass_kolmogorov_smirnov(axis):
    u = grid(**{axis: 2000}).flatten().sort().values
    n = len(u)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = max((steps[1:] - u).max().item(), (u - steps[:-1]).max().item())
    assert distance * math.sqrt(n) < 1.95  # p = 0.001


@pytest.mark.parametrize("axis", range(4))
def test_neighbours_along_each_coordinate_are_independent(axis):
    u = grid(8, 16, 16, 32)
    length = u.shape[axis]
    here, there = u.narrow(axis, 0, length - 1).flatten(), u.narrow(axis, 1, length - 1).flatten()
    correlation = torch.corrcoef(torch.stack([here, there]))[0, 1].item()
    assert abs(correlation) * math.sqrt(len(here)) < 4
    cells = torch.bincount((here * 8).long() * 8 + (there * 8).long(), minlength=64).double()
    expected = len(here) / 64
    assert ((cells - expected) ** 2 / expected).sum() < 112  # chi-square, about 63 degrees of freedom, p = 0.0001


def test_uniforms_use_all_53_bits_and_stay_inside_the_open_interval():
    u = grid(prompts=64, positions=512).flatten()
    assert u.min() > 0
    assert u.max() < 1
    mantissas = (u * 2.0**53).long()
    assert (mantissas.double() * 2.0**-53 == u).all()
    assert (mantissas & 1 == 1).all()
    for bit in range(1, 53):
        ones = ((mantissas >> bit) & 1).double().mean().item()
        assert abs(ones - 0.5) * 2 * math.sqrt(len(u)) < 5, f"bit {bit} is set in {ones:.4f} of the numbers"


def test_the_extreme_hashes_give_numbers_strictly_between_0_and_1():
    for upper in (0, (1 << 52) - 1):
        value = torch.tensor(upper * 2 + 1).to(torch.float64) * 2.0**-53
        assert 0 < value < 1
