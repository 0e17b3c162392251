"""The numbers of the tests hold on other processors too: under other instruction sets, as `make isa` has them all."""

import platform
from pathlib import Path

import pytest

from fakes.scripts import script

ROOT = Path(__file__).parents[2]
NUMBERS = sorted(path.name for path in (ROOT / "tests/golden").glob("test_*.py") if path.stem != "test_answer_checkers")
SMALL = (
    *(f"tests/golden/{name}" for name in NUMBERS),  # all but the checkers of answers, which read text
    "tests/unit/learner",
    "tests/unit/models/test_blocks.py",
    "tests/unit/rollout/test_engine.py",
)


def test_every_place_that_is_named_is_there() -> None:
    assert [place for place in (*script("instruction_sets").ROOMS, *SMALL) if not (ROOT / place).exists()] == []


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets are those of x86-64")
def test_the_sensitive_tests_pass_under_another_instruction_set() -> None:
    done = script("instruction_sets").run("plain", SMALL)
    assert done.returncode == 0, done.stdout
