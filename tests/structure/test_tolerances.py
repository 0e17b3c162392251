"""Tolerances stand in one place: 1e-6 holds for float32 only where both sides did the same work in the same order."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
BY_HAND = re.compile(r"\b(?:abs|atol)=[1-9](?:\.\d+)?e-0?[67]\b")
ROOMS = ("contracts", "integration", "properties", "unit")
FILES = sorted(path for room in ROOMS for path in (TESTS / room).rglob("test_*.py"))


def test_no_test_asks_of_float32_what_another_kernel_cannot_give() -> None:
    files = {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    lines = [(name, line) for name, text in files.items() for line in text.splitlines()]
    found = [(name, line.strip()) for name, line in lines if BY_HAND.search(line)]
    assert not found, "use fakes.tolerance: about(...) and assert_close(...)"
