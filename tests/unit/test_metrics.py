"""Declared metrics and how observations become one number."""

import json
import re
from pathlib import Path

import pytest
import torch

import oncurve
from oncurve.metrics import METRICS, Metrics, short


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.5, "0.5"),
        (0.123456, "0.123"),
        (12.34, "12.3"),
        (1234.4, "1234"),
        (9999.9, "10k"),
        (12345, "12.3k"),
        (1.2e6, "1.2M"),
        (3e9, "3G"),
        (0.00012, "1.2e-4"),
        (-0.25, "-0.25"),
        (2e14, "2.0e14"),
        (3e-12, "3.0e-12"),
    ],
)
def test_numbers_are_short(value, text) -> None:
    assert short(value) == text
