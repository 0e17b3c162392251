"""Log-probabilities whose gradient is formed by hand: the same bits, and autograd's gradient."""

import pytest
import torch

from oncurve.ops import entropy, entropy_of_logprobs, token_logprobs, token_logprobs_and_table


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


def test_the_gradient_is_that_of_finite_differences():
    logits, ids = logits_and_ids(rows=3, vocabulary=5)
    assert torch.autograd.gradcheck(lambda z: token_logprobs_and_table(z, ids, 0.7)[0], (logits,))


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
