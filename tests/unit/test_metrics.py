"""Declared metrics and how observations become one number."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

import oncurve
from fakes.tables import table
from oncurve.metrics import METRICS, Metrics, declared, share, short


def test_a_mean_is_over_all_observations_however_they_came() -> None:
    values, mask = torch.tensor([[1.0, 2, 9], [6, 9, 9]]), torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool)
    whole, first, second = Metrics(), Metrics(), Metrics()
    whole.add("policy/entropy", values, mask)
    first.add("policy/entropy", values[:1], mask[:1])
    second.add("policy/entropy", values[1:], mask[1:])
    first.merge(second)
    assert whole.result() == first.result() == {"policy/entropy": 3.0}
    assert second.result() == {"policy/entropy": 6.0}


def test_each_reduction() -> None:
    metrics = Metrics()
    for number in (3.0, 5.0, 4.0):
        for key in ("policy/ratio", "tokens/sampled", "policy/ratio_max", "optim/learning_rate"):
            metrics.add(key, number)
    assert metrics.result() == {
        "policy/ratio": 4,
        "tokens/sampled": 12,
        "policy/ratio_max": 5,
        "optim/learning_rate": 4,
    }


def test_reductions_of_tensors_under_a_mask() -> None:
    metrics, mask = Metrics(), torch.tensor([True, False, True, False])
    for key in ("policy/ratio", "tokens/sampled", "policy/ratio_max", "optim/learning_rate"):
        metrics.add(key, torch.tensor([-4, 100, -2, 200]), mask)
    assert metrics.result() == {
        "policy/ratio": -3,
        "tokens/sampled": -6,
        "policy/ratio_max": -2,
        "optim/learning_rate": -2,
    }


def test_values_that_are_not_finite_are_left_out_and_counted() -> None:
    metrics = Metrics()
    metrics.add("policy/kl", torch.tensor([1.0, torch.nan, 3.0, torch.inf]), torch.tensor([True, True, True, False]))
    metrics.add("policy/ratio_max", torch.inf)
    metrics.add("optim/grad_norm", -torch.inf)
    result = metrics.result()
    assert result == {"policy/kl": 2.0, "metrics/nonfinite": 3.0}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_every_declaration_is_complete() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        for text in (metric.unit, metric.formula, metric.meaning, metric.advice):
            assert text.strip()
        assert metric.reduction in ("mean", "sum", "max", "last")
        assert re.fullmatch(r"step|[a-z_]+/([a-z_]+|<[a-z]+>)", name)
        for elsewhere in (metric.trl, metric.verl):
            assert re.fullmatch(r"[a-z_<>/@-]*", elsewhere)
    assert {m.prefix for m in METRICS.values() if m.prefix} == {"rewards/", "faults/", "eval/"}


def test_every_declared_metric_is_logged_somewhere() -> None:
    folder = Path(oncurve.__file__).parent
    code = "\n".join(path.read_text() for path in folder.rglob("*.py") if path.name[:3] != "of_")
    timed = {f"time/{phase}" for phase in re.findall(r'timer\(metrics, "(\w+)"\)', code)}
    measured = {f"reward_model/heldout_{name}" for name in ("loss", "accuracy")}
    for name, metric in METRICS.items():
        assert f'"{metric.prefix or name}' in code or name in timed | measured, name


@pytest.mark.parametrize(("value", "text"), table("metrics", "numbers_are_short"))
def test_numbers_are_short(value, text) -> None:
    assert short(value) == text


def test_a_number_may_stand_for_the_sum_of_many_observations() -> None:
    metrics = Metrics()
    metrics.add("reward/mean", 12.0, count=32)
    metrics.add("reward/mean", 4.0, count=8)
    assert metrics.result() == {"reward/mean": 0.4}
    for key, values, mask in [
        ("reward/mean", torch.ones(2), None),
        ("policy/ratio_max", 1.0, None),
        ("reward/mean", torch.ones(1), torch.ones(1, dtype=torch.bool)),
    ]:
        with pytest.raises(ValueError, match="count"):
            metrics.add(key, values, mask, count=2)


def test_merging_keeps_maxima_and_takes_the_later_of_the_last() -> None:
    early, late, empty = Metrics(), Metrics(), Metrics()
    for metrics, number in ((early, 2.0), (late, 1.0)):
        metrics.add("policy/ratio_max", number)
        metrics.add("policy/kl_coef", number)
    empty.add("policy/kl_coef", torch.zeros(0))
    early.merge(late)
    early.merge(empty)
    assert early.result() == {"policy/ratio_max": 2, "policy/kl_coef": 1}


@pytest.mark.parametrize("key", ["policy/ratio", "tokens/sampled", "policy/ratio_max", "optim/learning_rate"])
def test_a_key_without_any_observation_is_absent(key: str) -> None:
    metrics = Metrics()
    metrics.add(key, torch.ones(3), torch.zeros(3, dtype=torch.bool))
    metrics.add(key, torch.zeros(0))
    assert metrics.result() == {}


def test_families_are_allowed_by_their_prefix_only() -> None:
    metrics = Metrics()
    metrics.add("rewards/correct", torch.tensor([0.0, 1.0]))
    metrics.add("eval/accuracy", 0.25)
    assert metrics.result() == {"rewards/correct": 0.5, "eval/accuracy": 0.25}
    for key in ("rewards/", "rewards/<name>", "loss/x", "rewards"):
        with pytest.raises(KeyError):
            declared(key)


def test_gradients_do_not_leak_into_metrics() -> None:
    x = torch.ones(2, requires_grad=True)
    metrics = Metrics()
    metrics.add("policy/kl", x * 2)
    assert metrics.result() == {"policy/kl": 2.0}


def test_low_precision_is_summed_in_float64() -> None:
    metrics = Metrics()
    metrics.add("policy/kl", torch.full((4096,), 0.1, dtype=torch.bfloat16))
    assert metrics.result()["policy/kl"] == torch.tensor(0.1, dtype=torch.bfloat16).item()


def test_the_last_is_the_last_however_numbers_and_tensors_are_mixed() -> None:
    metrics = Metrics()
    metrics.add("optim/learning_rate", 1.0)
    metrics.add("optim/learning_rate", torch.tensor([2.0, 3.0]))
    assert metrics.result() == {"optim/learning_rate": 3.0}
    metrics.add("optim/learning_rate", 4.0)
    metrics.add("optim/learning_rate", math.nan)
    assert metrics.result() == {"optim/learning_rate": 4.0, "metrics/nonfinite": 1.0}


@pytest.mark.parametrize("key", ["reward/mean", "tokens/sampled", "completions/length_max", "progress/epoch"])
@pytest.mark.parametrize("values", [[], [3.0], [2.0, float("nan"), 5.0, 1.0], [float("inf")], [float("-inf"), -4.0]])
def test_many_at_once_are_as_many_one_by_one(key: str, values: list[float]) -> None:
    one_by_one, at_once = Metrics(), Metrics()
    for metrics in (one_by_one, at_once):
        metrics.add(key, 2.0)
    for value in values:
        one_by_one.add(key, value)
    at_once.add_all(key, values)
    assert at_once.result() == one_by_one.result()
    with pytest.raises(KeyError, match="not declared"):
        at_once.add_all("rewad", values)


def test_shares_are_100_percent_only_where_they_are() -> None:
    assert [share(x) for x in (0.0, 0.001, 0.125, 0.999, 1.0)] == ["0%", "<1%", "12%", ">99%", "100%"]
