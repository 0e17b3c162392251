"""The benchmark is project code: the same caps, and its page says what the committed results say."""

import re
from pathlib import Path

from bench.report.document import BLOCK, PAGE, WRITERS, filled, results_of

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_the_results_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, results_of(page)) == page, "run: make performance-doc"


def test_the_page_has_every_part() -> None:
    parts = [found[1] for found in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    assert sorted(parts) == sorted([*WRITERS, "growth", "advantages", "learning"])


def test_every_part_that_was_measured_has_its_picture() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for line in page.splitlines():
        if line.startswith("!["):
            assert (PAGE.parent / line.partition("(")[2].rstrip(")")).is_file(), line


def test_the_files_that_the_benchmark_names_are_there() -> None:
    named = [
        re.findall(r"[\"']([\w.-]+)[\"']", chain)
        for path in (ROOT / "bench").rglob("*.py")
        for chain in re.findall(r"(?:ROOT|parents\[\d\])((?: / [\"'][\w.-]+[\"'])+)", path.read_text(encoding="utf-8"))
    ]
    made = {".cache", "results"}
    assert ["bench", "systems", "rewards.py"] in named
    assert [parts for parts in named if not made & set(parts) and not ROOT.joinpath(*parts).exists()] == []
