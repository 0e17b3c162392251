"""Pages that scripts make say what the code and the committed results say; places that scripts name are there."""

import platform
import re
from collections import Counter
from pathlib import Path

import pytest
from bench.report.document import BLOCK, PAGE, WRITERS, filled, results_of
from bench.scaling.page import PAGE as SCALING, TOLERANCE, held_out, page_of
from bench.scaling.published import ROWS

from fakes.scripts import script, site_page
from oncurve.base.errors import ConfigError
from oncurve.config import RUN, explain_key
from oncurve.metrics import METRICS
from oncurve.rewards import REWARD_KINDS

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


TEXT = SCALING.read_text(encoding="utf-8")
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
    assert [int(number) for number in said.groups()] == [len(held_out()), len(good), len(steps), len(good) - len(steps)]


@pytest.mark.slow
def test_the_page_is_what_the_script_makes() -> None:
    assert page_of(TEXT) == TEXT, "run: make scaling-page"


def test_every_metric_is_on_its_page_with_its_formula_and_advice() -> None:
    text = site_page("metrics")
    parts = [part for name, metric in METRICS.items() for part in (f"\n## `{name}`\n", metric.formula, metric.advice)]
    assert [part for part in parts if part not in text] == []
    for name, metric in METRICS.items():
        assert " ".join(metric.advice.split()) in " ".join(str(explain_key(name)).split())


def test_every_key_is_on_its_page_and_is_explained() -> None:
    text = site_page("configuration")
    kinds = {name: section.kinds for name, section in RUN.sections.items()} | {"rewards": REWARD_KINDS}
    for section, classes in kinds.items():
        for name in {name for cls in classes.values() for name in cls.model_fields}:
            assert f"| `{name}` |" in text, f"{section}.{name}"
            said = str(explain_key(f"rewards.0.{name}" if section == "rewards" else f"{section}.{name}"))
            assert re.search(rf"^{section}\.{name}\n  default ", said), said
            assert "\n  meaning  " in said
    assert explain_key("rollout") is not None
    assert explain_key("no_such") is None
    with pytest.raises(ConfigError, match=r"did you mean 'rollout\.top_p'"):
        explain_key("rollout.topp")
    with pytest.raises(ConfigError, match="did you mean 'reward/mean'"):
        explain_key("reward/meen")


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
