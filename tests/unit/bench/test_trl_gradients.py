"""The comparison of gradients with TRL: which updates it has, and that oncurve's side is the formula's gradient."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.compare import updates
from bench.compare.trl_gradients import KNOWN, _read, known, planned, report
from bench.compare.updates import KLS, LOSSES, Update, distance

from fakes.architectures import architecture
from oncurve.losses import OBJECTIVE_KINDS

ROOT = Path(__file__).parents[3]


def text(number: int, length: int) -> list[int]:
    return [(7 * number + 3 * t) % 58 + 3 for t in range(length)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A tiny model, and completions for it: what TRL would be given needs the benchmark's tokenizer."""
    lengths = [[8, 3, 5, 1], [4, 6, 2, 7], [5, 5, 9, 3]]
    rows = [[text(5 * g + i, n) for i, n in enumerate(group)] for g, group in enumerate(lengths)]
    monkeypatch.setattr(updates, "prompts", lambda: [text(90 + g, 3 + g) for g in range(3)])
    monkeypatch.setattr(updates, "completions", lambda: rows)
    monkeypatch.setattr(
        updates, "module", lambda dtype, disturbed=False: architecture("qwen2", dtype, seed=int(disturbed))
    )
    updates.old_logprobs.cache_clear()
    yield
    updates.old_logprobs.cache_clear()


MASKED = {"kl": "k3", "mask_truncated": True, "micro_batches": 3}


@pytest.mark.parametrize(
    "update",
    [
        *(Update(loss, **MASKED) for loss in LOSSES if LOSSES[loss].objective in OBJECTIVE_KINDS),
        Update("grpo", "ratio k3"),
        Update("grpo", off_policy=False),
    ],
    ids=str,
)
def test_oncurves_side_is_the_gradient_of_the_formula(update: Update) -> None:
    assert distance(updates.gradient(update), updates.oracle(update)) <= 1e-5


def test_every_loss_meets_every_kl_on_and_off_policy_whole_and_in_micro_batches() -> None:
    updates_of = [update for update in planned(LOSSES) if not update.mask_truncated]
    assert len(updates_of) == len(set(updates_of)) == len(LOSSES) * len(KLS) * 4
    assert {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "gspo"} <= set(LOSSES)


def test_trl_is_expected_to_differ_in_the_known_cases_only() -> None:
    differing = {(update.loss, known(update)) for update in planned(LOSSES) if known(update)}
    means = {(loss, "masked row") for loss in ("grpo", "dr_grpo", "sapo", "gspo")}
    assert differing == means | {("bnpo", "micro-batches"), ("gspo", "sequence ratio in the KL")}
    assert {reason for _, reason in differing} == set(KNOWN)


def test_the_page_has_the_figures_of_the_results_and_all_are_within_the_limit() -> None:
    record = json.loads((ROOT / "bench/results/trl_gradients.json").read_text(encoding="utf-8"))
    found = [_read(entry) for entry in record["updates"]]
    assert {update for update, _ in found} == set(planned(LOSSES))
    assert all(figures["passed"] for _, figures in found)
    assert report(found, record["cispo_at_default"]) in (ROOT / "docs/performance.md").read_text(encoding="utf-8")
