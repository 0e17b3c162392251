"""docs/scaling.md says what the simulator says, and claims no more than its own tables show."""

import re
from collections import Counter

import pytest
from bench.scaling.page import PAGE, TOLERANCE, held_out, page_of
from bench.scaling.published import ROWS

TEXT = PAGE.read_text(encoding="utf-8")
LINE = re.compile(r"^\| (.+?) \| ([\d.]+) s \| ([\d.]+) s \| ([+-][\d.]+)% \| \d+% \| \d+% \| (.+) \|$", re.MULTILINE)
LINES = LINE.findall(TEXT)


def test_two_rows_of_a_table_calibrate_at_most() -> None:
    counts = Counter(row.table for row in ROWS if row.calibrates)
    assert max(counts.values()) <= 2
    assert [says.startswith("held out") for *_, says in LINES] == [not row.calibrates for row in ROWS]


def test_eight_steps_of_verl_and_both_ratios_of_areal_are_within_the_tolerance() -> None:
    good = [row for row, line in zip(ROWS, LINES, strict=True) if abs(float(line[3])) <= 100 * TOLERANCE]
    good = [row for row in good if not row.calibrates]
    steps = [row for row in good if not row.ratio_to]
    assert len(steps) >= 8
    assert {row.name for row in good if row.table == "areal"} == {"1.5B, apart", "7B, apart"}
    said = re.search(r"Of (\d+) rows that are held out, (\d+) are within 15 %: (\d+) steps of verl and (\d+)", TEXT)
    assert [int(number) for number in said.groups()] == [
        len(held_out()),
        len(good),
        len(steps),
        len(good) - len(steps),
    ]


@pytest.mark.slow
def test_the_page_is_what_the_script_makes() -> None:
    assert page_of(TEXT) == TEXT, "run: make scaling-page"
