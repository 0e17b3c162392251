"""Tolerances stand in one place: 1e-6 holds for float32 only where both sides did the same work in the same order."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
BY_HAND = re.compile(r"\b(?:abs|atol)=[1-9](?:\.\d+)?e-0?[67]\b")
ROOMS = ("contracts", "integration", "oracles", "properties", "unit")
FILES = sorted(path for room in ROOMS for path in (TESTS / room).rglob("test_*.py"))
PRINTED = {"oracles/test_plain_grpo.py"}
"""Where the tolerance is that of numbers printed with 7 or 8 digits, in float64."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_asks_of_float32_what_another_kernel_cannot_give(path: Path) -> None:
    if str(path.relative_to(TESTS)) in PRINTED:
        return
    found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if BY_HAND.search(line)]
    assert not found, "use fakes.tolerance: about(...) and assert_close(...)"


def test_there_are_tests_to_look_at() -> None:
    assert len(FILES) > 50
    assert all((TESTS / name).is_file() for name in PRINTED)
