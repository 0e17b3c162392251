"""The judge is judged first: every golden number that concerns the oracle, and finite differences of its loss."""

import pytest
import torch

from oracles.plain_grpo import (
    PlainAdamW,
    PlainConfig,
    PlainGroup,
    reference_loss,
    reference_step,
)

torch.set_num_threads(1)
AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KINDS = ["k1", "abs", "k2", "k3", "full", "k1+", "abs+", "k3+", "ratio_k3"]


def table_model(vocabulary: int = 5, seed: int = 0):
    """logits = table[this token] + shift[the one before]: enough context for a test, no network."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64, requires_grad=True)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        row = ids[0]
        return table[row] + shift[torch.roll(row, 1)]

    return logits, [table, shift]


def some_groups(old: bool = True) -> list[PlainGroup]:
    return [
        PlainGroup(
            [1, 2],
            [[3, 4], [0], [2, 2, 1], [4]],
            [1.0, 0.0, 0.5, None],
            [[-1.0, -2.0], [-0.5], [-1.5, -2.5, -3.0], [-1.0]] if old else None,
            [[True, True], [True], [True, False, True], [True]],
        ),
        PlainGroup([0, 3, 1], [[1, 0], [2, 3]], [2.0, -1.0], [[-1.2, -1.4], [-2.0, -0.8]] if old else None),
    ]


def test_kl_is_zero_against_itself_and_temperature_is_mirrored() -> None:
    logits, _ = table_model()
    for kind in KINDS:
        config = PlainConfig(objective="reinforce", scale="none", kl=kind, kl_coef=1.0)
        with_kl = reference_loss(logits, some_groups(), config)
        without = reference_loss(logits, some_groups(), PlainConfig(objective="reinforce", scale="none", kl_coef=0.0))
        assert with_kl.item() == pytest.approx(without.item(), abs=1e-12), kind
    fixed = torch.tensor([2.0, 1.0, 0.0])
    group = PlainGroup([0], [[0], [1]], [1.0, 0.0])
    config = PlainConfig(temperature=0.5, objective="reinforce", scale="none", kl_coef=0.0, aggregation="token-sum")
    loss = reference_loss(lambda ids: fixed.expand(ids.shape[1], 3), [group], config)
    assert loss.item() == pytest.approx(-0.5 * -0.14293163 + 0.5 * -2.14293163, abs=1e-7)


def test_a_completion_that_is_not_valid_is_as_if_it_were_not_there() -> None:
    logits, parameters = table_model()
    groups = some_groups()
    first = groups[0]
    without = PlainGroup(
        first.prompt, first.completions[:3], first.rewards[:3], first.old_logprobs[:3], first.trained[:3]
    )
    for mode in AGGREGATIONS:
        config = PlainConfig(aggregation=mode, max_length=3)
        one = torch.autograd.grad(reference_loss(logits, groups, config), parameters[0])[0]
        other = torch.autograd.grad(reference_loss(logits, [without, groups[1]], config), parameters[0])[0]
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_the_optimizer_is_torchs_adamw_after_torchs_clipping() -> None:
    ours, theirs = [table_model(seed=3) for _ in range(2)]
    plain = PlainAdamW(learning_rate=0.05, weight_decay=0.1, max_grad_norm=0.3)
    adamw = torch.optim.AdamW(theirs[1], lr=0.05, weight_decay=0.1)
    for _ in range(3):
        loss, norm = reference_step(ours[0], ours[1], some_groups(False), PlainConfig(), plain)
        adamw.zero_grad()
        expected = reference_loss(theirs[0], some_groups(False), PlainConfig())
        expected.backward()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs[1], 0.3)), abs=1e-12)
        adamw.step()
        assert loss == pytest.approx(expected.item())
    for mine, torchs in zip(ours[1], theirs[1], strict=True):
        assert torch.allclose(mine, torchs, atol=1e-12)
