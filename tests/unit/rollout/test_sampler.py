import pytest
import torch
from hypothesis import given, settings, strategies as st

from fakes.tolerance import assert_close
from oncurve.randomness import uniform
from oncurve.rollout.sampler import greedy, sample
from oracles import plain_sampler

SMALLEST, LARGEST = 2.0**-53, 1 - 2.0**-53  # the least and greatest uniform there is


def uniforms(n, draw=0):
    return uniform(5, draw, torch.arange(n), torch.zeros(n, dtype=torch.long), 0)


def normal(n, vocabulary, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, vocabulary, generator=generator, dtype=torch.float64).mul(3).to(dtype)


@pytest.mark.parametrize("vocabulary", [1, 2, 63, 128, 129, 192, 300, 1000])
@pytest.mark.parametrize("temperature", [0, 0.7, 1.0, 2.5])
def test_sample_equals_the_plain_one(vocabulary, temperature):
    logits, u = normal(12, vocabulary), uniforms(12)
    ids, logprobs = sample(logits, u, temperature)
    expected = [
        plain_sampler.sample(row.tolist(), u_row.item(), temperature) for row, u_row in zip(logits, u, strict=True)
    ]
    assert ids.tolist() == [token for token, _ in expected]
    assert_close(logprobs, torch.tensor([logprob for _, logprob in expected]), torch.float32)


@pytest.mark.parametrize("vocabulary", [5, 200])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_frequencies_are_the_distributions(vocabulary, temperature):
    n = 100_000
    row = normal(1, vocabulary, torch.float32)
    ids, _ = sample(row.expand(n, -1), uniforms(n), temperature)
    expected = torch.softmax(row[0].double() / temperature, -1) * n
    enough = expected >= 5
    observed = torch.bincount(ids, minlength=vocabulary).double()
    pooled_observed = torch.cat([observed[enough], observed[~enough].sum()[None]])
    pooled_expected = torch.cat([expected[enough], expected[~enough].sum()[None]]).clamp_min(1e-9)
    kept = pooled_expected >= 1
    chi_square = ((pooled_observed - pooled_expected) ** 2 / pooled_expected)[kept].sum().item()
    freedom = int(kept.sum()) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


@settings(max_examples=60, deadline=None)
@given(data=st.data(), vocabulary=st.sampled_from([3, 128, 129, 140, 256, 333]))
def test_impossible_tokens_are_never_drawn(data, vocabulary):
    possible = data.draw(st.sets(st.integers(0, vocabulary - 1), min_size=1, max_size=5))
    logits = torch.full((1, vocabulary), -torch.inf)
    logits[0, sorted(possible)] = torch.tensor([data.draw(st.floats(-30, 30)) for _ in possible])
    for u in (SMALLEST, data.draw(st.floats(SMALLEST, LARGEST)), LARGEST):
        ids, logprobs = sample(logits, torch.tensor([u], dtype=torch.float64))
        assert ids.item() in possible
        assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("vocabulary", [100, 1000])
def test_uniforms_next_to_0_and_1_give_the_first_and_last_possible_token(vocabulary):
    logits = normal(1, vocabulary, torch.float32)
    logits[0, :10] = logits[0, -10:] = -1e9  # their probability underflows to exactly 0
    ends = torch.tensor([SMALLEST, LARGEST], dtype=torch.float64)
    assert sample(logits.expand(2, -1), ends)[0].tolist() == [10, vocabulary - 11]


def test_greedy_takes_the_maximum_and_records_the_logprob_at_temperature_1():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    for ids, logprobs in (greedy(logits), sample(logits, uniforms(2), 0)):
        assert ids.tolist() == [0, 2]
        torch.testing.assert_close(logprobs, torch.tensor([-0.40760596, -0.40760596]))


def test_logprobs_of_the_worked_example():
    logits = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64).expand(3, -1)
    u = torch.tensor([0.3, 0.8, 0.95], dtype=torch.float64)
    ids, logprobs = sample(logits, u)
    assert ids.tolist() == [0, 1, 2]
    torch.testing.assert_close(logprobs, torch.tensor([-0.40760596, -1.40760596, -2.40760596]).double())
    assert sample(logits[:1], u[:1], 0.5)[1].item() == pytest.approx(-0.14293163)
    assert sample(logits[:1], u[:1], 0.6)[1].item() == pytest.approx(-0.2025731)


@pytest.mark.parametrize("vocabulary", [7, 300])
def test_a_nan_shows_in_the_logprob_and_the_id_stays_in_range(vocabulary):
    logits = normal(2, vocabulary, torch.float32)
    logits[1, 3] = torch.nan
    ids, logprobs = sample(logits, uniforms(2))
    assert torch.isfinite(logprobs[0])
    assert torch.isnan(logprobs[1])
    assert 0 <= ids[1] < vocabulary
