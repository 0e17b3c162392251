"""The judge is judged first: every golden number that concerns the oracle, and finite differences of its loss."""

import math

import pytest
import torch

from oracles.plain_grpo import (
    PlainAdamW,
    PlainConfig,
    PlainGroup,
    advantages,
    aggregate,
    kl_term,
    reference_loss,
    reference_step,
    surrogate,
)

torch.set_num_threads(1)
AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KINDS = ["k1", "abs", "k2", "k3", "full", "k1+", "abs+", "k3+", "ratio_k3"]


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


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


@pytest.mark.parametrize(
    ("rewards", "scale", "ddof", "eps", "expected"),
    [
        ([1, 0, 0, 1], "group", 1, 1e-6, [0.8660239, -0.8660239, -0.8660239, 0.8660239]),
        ([0.2, 0.5, 0.9, 0.4], "group", 1, 1e-6, [-1.01904587, 0, 1.35872783, -0.33968196]),
        ([1, 0, 0, 1], "group", 1, 1e-4, [0.86587543, -0.86587543, -0.86587543, 0.86587543]),
        ([0.2, 0.5, 0.9, 0.4], "group", 1, 1e-4, [-1.01870329, 0, 1.35827106, -0.33956776]),
        ([1, 0, 0, 1], "group", 0, 0.0, [1, -1, -1, 1]),
        ([0.2, 0.5, 0.9, 0.4], "group", 0, 0.0, [-1.17669681, 0, 1.56892908, -0.39223227]),
        ([0.2, 0.5, 0.9, 0.4], "none", 1, 1e-6, [-0.3, 0, 0.4, -0.1]),
        ([0.7] * 8, "group", 1, 1e-6, [0.0] * 8),
        ([0.1] * 3, "none", 1, 1e-6, [0.0] * 3),
    ],
)
def test_outcome_advantages(rewards, scale, ddof, eps, expected) -> None:
    assert advantages([rewards], scale, ddof, eps)[0] == pytest.approx(expected, abs=1e-7)


def test_batch_scale_divides_every_group_by_the_deviation_of_all_valid_rewards() -> None:
    scored = advantages([[1.0, 0.0], [4.0, None, 2.0], [9.0]], "batch", 1, 0.0)
    deviation = math.sqrt(sum((r - 1.75) ** 2 for r in (1, 0, 4, 2)) / 3)
    assert scored[0] == pytest.approx([0.5 / deviation, -0.5 / deviation])
    assert scored[1][0] == pytest.approx(1 / deviation)
    assert scored[1][1] is None
    assert scored[2] == [None]


@pytest.mark.parametrize(
    ("lp", "ref", "kind", "value", "gradient"),
    [
        (-1.0, -1.5, "k1", 0.5, 1.0),
        (-1.5, -1.0, "k1", -0.5, 1.0),
        (-1.0, -1.5, "abs", 0.5, 1.0),
        (-1.5, -1.0, "abs", 0.5, -1.0),
        (-1.0, -1.5, "k2", 0.125, 0.5),
        (-1.5, -1.0, "k2", 0.125, -0.5),
        (-1.0, -1.5, "k3", 0.10653066, 0.39346934),
        (-1.5, -1.0, "k3", 0.14872127, -0.64872127),
        (-1.0, -1.5, "k3+", 0.10653066, 0.5),
        (-1.5, -1.0, "k1+", -0.5, -0.5),
        (-1.5, -1.0, "abs+", 0.5, -0.5),
    ],
)
def test_kl_value_and_gradient_are_two_choices(lp, ref, kind, value, gradient) -> None:
    x, none = scalar(lp), torch.zeros(1)
    got = kl_term(kind, x, scalar(ref).detach(), scalar(lp).detach(), none, none)
    assert got.item() == pytest.approx(value, abs=1e-8)
    assert float(torch.autograd.grad(got, x)[0]) == pytest.approx(gradient, abs=1e-8)


@pytest.mark.parametrize(("lp", "ref", "sign"), [(-5.0, -1.0, -1), (-29.0, -1.0, -1), (-1.0, -40.0, 1)])
@pytest.mark.parametrize("kind", ["k3", "ratio_k3", "k3+"])
def test_k3_never_loses_its_pull(kind, lp, ref, sign) -> None:
    x, none = scalar(lp), torch.zeros(1)
    got = kl_term(kind, x, scalar(ref).detach(), scalar(lp).detach(), none, none)
    assert math.isfinite(got.item())
    assert sign * float(torch.autograd.grad(got, x)[0]) > 0


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("full", 0.02526715, [0.0989382, -0.09388477, -0.00505343]),
        ("k1", 0.02526715, [0.0, 0.0, 0.0]),
        ("k2", 0.02486241, [0.0989382, -0.09388477, -0.00505343]),
        ("k3", 0.02526715, [0.1, -0.1, 0.0]),
        ("k3+", 0.02526715, [0.0989382, -0.09388477, -0.00505343]),
        ("ratio_k3", 0.02526715, [0.0989382, -0.09388477, -0.00505343]),
    ],
)
def test_kl_expectations_by_enumeration(kind, value, gradient) -> None:
    pi, ref = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]], dtype=torch.float64)
    logits = pi.log().requires_grad_()
    log_p = torch.log_softmax(logits, -1)
    terms = [kl_term(kind, log_p[v], ref[v].log(), log_p[v].detach(), log_p, ref.log()) for v in range(3)]
    expected = sum(pi[v] * terms[v] for v in range(3))
    assert expected.item() == pytest.approx(value, abs=1e-8)
    assert torch.autograd.grad(expected, logits)[0].tolist() == pytest.approx(gradient, abs=1e-8)


@pytest.mark.parametrize(
    ("advantage", "ratio", "options", "loss", "moves"),
    [
        (1, 1.5, {}, -1.2, False),
        (1, 1.5, {"clip_high": 0.28}, -1.28, False),
        (1, 0.5, {}, -0.5, True),
        (-1, 0.5, {}, 0.8, False),
        (-1, 1.5, {}, 1.5, True),
        (-1, 5, {}, 5, True),
        (-1, 5, {"dual_clip": 3}, 3, False),
        (-1, 5, {"delta": 4}, 4, False),
        (1, 1.25, {"clip_high": 0.28}, -1.25, True),
    ],
)
def test_clipped_surrogate(advantage, ratio, options, loss, moves) -> None:
    x = scalar(ratio)
    got = surrogate(x, advantage, PlainConfig(**options))
    assert got.item() == pytest.approx(loss)
    assert (float(torch.autograd.grad(got, x)[0]) != 0) == moves


@pytest.mark.parametrize(
    ("mode", "length", "expected"),
    [
        ("token-mean", 1, 2.5),
        ("token-sum", 1, 10),
        ("seq-mean-token-sum", 1, 5),
        ("seq-mean-token-mean", 1, 3),
        ("seq-mean-token-sum-norm", 3, 1.66666667),
        ("seq-mean-token-sum-norm", 8, 0.625),
    ],
)
def test_aggregations_and_that_a_masked_row_changes_none(mode, length, expected) -> None:
    rows = [[scalar(1), scalar(2), scalar(3)], [scalar(4)]]
    assert aggregate(rows, mode, length).item() == pytest.approx(expected)
    assert aggregate([*rows, []], mode, length).item() == pytest.approx(expected)


def test_two_armed_bandit_gradient() -> None:
    arms = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    group = PlainGroup([0], [[0], [0], [1], [1]], [1.0, 1.0, 0.0, 0.0])
    config = PlainConfig(objective="reinforce", kl_coef=0.0)
    loss = reference_loss(lambda ids: arms.expand(ids.shape[1], 2), [group], config)
    assert torch.autograd.grad(loss, arms)[0].tolist() == pytest.approx([-0.43301195, 0.43301195], abs=1e-8)


def test_sequence_ratio_is_the_product_and_seq_mean_token_sum_gives_the_mean_over_outputs() -> None:
    uniform = torch.zeros(2, dtype=torch.float64)
    lp = math.log(0.5)
    old = [[lp - 0.1, lp + 0.2, lp - 0.3], [lp]]
    group = PlainGroup([0], [[0, 1, 0], [1]], [1.0, 0.0], old)
    config = PlainConfig(
        objective="sequence_product", scale="none", clip_high=9.0, kl_coef=0.0, aggregation="seq-mean-token-sum"
    )
    loss = reference_loss(lambda ids: uniform.expand(ids.shape[1], 2), [group], config)
    assert loss.item() == pytest.approx((-0.5 * 1.22140276 + 0.5) / 2, abs=1e-8)


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


@pytest.mark.parametrize("objective", ["clipped", "sequence_product", "reinforce"])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_the_gradient_is_that_of_finite_differences(objective, mode) -> None:
    logits, parameters = table_model()
    reference, _ = table_model(seed=1)
    config = PlainConfig(
        temperature=0.7, objective=objective, kl="k3", kl_coef=0.1, entropy_coef=0.05, aggregation=mode, max_length=4
    )
    loss = reference_loss(logits, some_groups(), config, reference)
    gradient = torch.autograd.grad(loss, parameters[0])[0]
    for row, column in [(2, 3), (3, 4), (1, 2)]:
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                parameters[0][row, column] += step
                values.append(reference_loss(logits, some_groups(), config, reference).item())
                parameters[0][row, column] -= step
        assert float(gradient[row, column]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6, abs=1e-7)


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
