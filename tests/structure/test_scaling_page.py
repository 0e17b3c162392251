"""docs/scaling.md says what the simulator says, and claims no more than its own tables show."""

import re
from collections import Counter

import pytest
from bench.scaling.page import PAGE, TOLERANCE, error, held_out, page_of
from bench.scaling.published import ROWS

TEXT = PAGE.read_text(encoding="utf-8")
LINE = re.compile(r"^\| (.+?) \| ([\d.]+) s \| ([\d.]+) s \| ([+-][\d.]+)% \| \d+% \| \d+% \| (.+) \|$", re.MULTILINE)
LINES = LINE.findall(TEXT)


def test_every_row_is_on_the_page_with_its_published_figure() -> None:
    assert [name for name, *_ in LINES] == [row.name for row in ROWS]
    assert [float(published) for _, published, *_ in LINES] == [pytest.approx(row.step, abs=0.051) for row in ROWS]


def test_two_rows_of_a_table_calibrate_at_most() -> None:
    counts = Counter(row.table for row in ROWS if row.calibrates)
    assert max(counts.values()) <= 2
    assert [says.startswith("held out") for *_, says in LINES] == [not row.calibrates for row in ROWS]


def test_an_error_is_that_of_its_row() -> None:
    for row, (_, published, simulated, off, _) in zip(ROWS, LINES, strict=True):
        if not row.ratio_to:
            assert float(off) == pytest.approx(100 * (float(simulated) / float(published) - 1), abs=0.11)


def test_eight_steps_of_verl_and_both_ratios_of_areal_are_within_the_tolerance() -> None:
    good = [row for row, line in zip(ROWS, LINES, strict=True) if abs(float(line[3])) <= 100 * TOLERANCE]
    good = [row for row in good if not row.calibrates]
    steps = [row for row in good if not row.ratio_to]
    assert len(steps) >= 8
    assert {row.name for row in good if row.table == "areal"} == {"1.5B, apart", "7B, apart"}
    said = re.search(r"Of (\d+) rows that are held out, (\d+) are within 15 %: (\d+) steps of verl and (\d+)", TEXT)
    assert said is not None
    assert [int(number) for number in said.groups()] == [
        len(held_out()),
        len(good),
        len(steps),
        len(good) - len(steps),
    ]


def test_a_missed_row_is_marked() -> None:
    for row, (*_, off, says) in zip(ROWS, LINES, strict=True):
        if not row.calibrates:
            assert ("missed" in says) == (abs(float(off)) > 100 * TOLERANCE), row.name


def test_a_row_simulated_again_has_its_error() -> None:
    (row,) = (row for row in ROWS if row.table == "tools" and not row.calibrates)
    (line,) = (line for line, each in zip(LINES, ROWS, strict=True) if each is row)
    assert 100 * error(row) == pytest.approx(float(line[3]), abs=0.051)


@pytest.mark.slow
def test_the_page_is_what_the_script_makes() -> None:
    assert page_of(TEXT) == TEXT, "run: make scaling-page"
