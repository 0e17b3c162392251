"""Declared metrics and how observations become one number."""

import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import oncurve
from fakes.tables import table
from oncurve.metrics import METRICS, Metrics, declared, share, short

REDUCED = {
    "policy/ratio": fmean,
    "tokens/sampled": math.fsum,
    "policy/ratio_max": max,
    "optim/learning_rate": lambda values: values[-1],
}
VALUES = st.lists(st.sampled_from([0.0, 3.0, -2.0, 5.5, 1e6, math.nan, math.inf, -math.inf]), max_size=4)


@pytest.mark.parametrize("key", REDUCED)
@settings(max_examples=40)
@given(st.lists(st.tuples(VALUES, st.sampled_from(["one by one", "at once", "under a mask"]), st.booleans())))
def test_observations_become_one_number_however_they_come(key: str, pieces: list[Any]) -> None:
    """One by one, many at once, in tensors of which a mask leaves out the half, and by any number of collectors."""
    whole, part, seen = Metrics(), Metrics(), []
    for values, how, apart in pieces:
        if apart:
            whole.merge(part)
            part = Metrics()
        if how == "at once":
            part.add_all(key, values)
        elif how == "under a mask":
            rows = torch.tensor([(value, 1e9) for value in values], dtype=torch.float64).reshape(-1, 2)
            part.add(key, rows, torch.tensor([True, False]).expand(rows.shape))
        else:
            for value in values:
                part.add(key, value)
        seen += values
    whole.merge(part)
    finite = [value for value in seen if math.isfinite(value)]
    wanted = {key: REDUCED[key](finite)} if finite else {}
    if len(finite) < len(seen):
        wanted["metrics/nonfinite"] = len(seen) - len(finite)
    assert whole.result() == pytest.approx(wanted)
    with pytest.raises(KeyError, match="not declared"):
        part.add_all("rewad", [1.0])


def test_every_declaration_is_complete() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        for text in (metric.unit, metric.formula, metric.meaning, metric.advice):
            assert text.strip()
        assert metric.reduction in ("mean", "sum", "max", "last")
        assert re.fullmatch(r"step|[a-z_]+/([a-z_]+|<[a-z]+>)", name)
        for elsewhere in (metric.trl, metric.verl):
            assert re.fullmatch(r"[a-z_<>/@-]*", elsewhere)
    assert {m.prefix for m in METRICS.values() if m.prefix} == {"rewards/", "faults/", "eval/", "own/"}


def test_every_declared_metric_is_logged_somewhere() -> None:
    folder = Path(oncurve.__file__).parent
    code = "\n".join(path.read_text() for path in folder.rglob("*.py") if path.name[:3] != "of_")
    timed = {f"time/{phase}" for phase in re.findall(r'timer\(metrics, "(\w+)"\)', code)}
    measured = {f"reward_model/heldout_{name}" for name in ("loss", "accuracy")}
    for name, metric in METRICS.items():
        if metric.prefix == "own/":  # that of components from elsewhere
            continue
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


def test_families_are_allowed_by_their_prefix_only() -> None:
    metrics = Metrics()
    metrics.add("rewards/correct", torch.tensor([0.0, 1.0]))
    metrics.add("eval/accuracy", 0.25)
    metrics.add("own/surprise", 3.0)
    assert metrics.result() == {"rewards/correct": 0.5, "eval/accuracy": 0.25, "own/surprise": 3.0}
    for key in ("rewards/", "rewards/<name>", "loss/x", "rewards", "own/"):
        with pytest.raises(KeyError, match="own/NAME"):
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


def test_shares_are_100_percent_only_where_they_are() -> None:
    assert [share(x) for x in (0.0, 0.001, 0.125, 0.999, 1.0)] == ["0%", "<1%", "12%", ">99%", "100%"]
