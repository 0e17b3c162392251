"""What a notebook's cell shows: pages in frames, groups, and tables with curves."""

import html
from pathlib import Path

import pytest

from oncurve.display import run_card
from oncurve.display.card import curve
from oncurve.errors import ConfigError
from oncurve.report import Groups, Page

LINES = [{"step": float(step), "reward/mean": step / 4, "policy/kl": 0.0} for step in range(1, 5)]


def group(text: str, reward: float | None = 1.0, advantage: float | None = 0.5) -> dict[str, object]:
    completion = {"text": text, "ids": [1], "ended": "eos", "reward": reward, "advantage": advantage, "parts": {}}
    return {"draw": 0, "prompt": {"id": 0, "text": "2+2=", "ids": [1], "columns": {}}, "completions": [completion]}


def test_a_card_has_first_and_last_values_and_escapes_what_it_quotes() -> None:
    shown = run_card("runs/<b>", LINES, ["line & line"], done=0.5)
    assert "runs/&lt;b&gt;" in shown
    assert "line &amp; line" in shown
    assert ">0.250<" in shown
    assert ">1.00<" in shown
    assert "width:50.0%" in shown
    assert "cut off" not in shown  # shown only where there is some
    assert "cut off" in run_card("run", [{"step": 1.0, "completions/truncated": 0.5}])
    assert "<table" not in run_card("run", [])


def test_a_curve_has_two_points_at_least_and_leaves_out_what_is_not_finite() -> None:
    assert curve([1.0]) == ""
    assert curve([1.0, float("nan")]) == ""
    assert curve([0.0, float("inf"), 1.0]).count(",") == 2
    assert "20.0 " in curve([3.0, 3.0])  # a constant is drawn at the bottom
    assert curve([float(index) for index in range(1000)]).count(",") == 75


def test_groups_show_texts_with_rewards_and_advantages_of_a_step() -> None:
    groups = Groups([group("<script>4</script>")], step=3)
    assert repr(groups) == "<1 group of step 3, 1 completion>"
    assert groups[0]["completions"][0]["reward"] == 1.0
    frame = groups._repr_html_()
    page = html.unescape(frame)
    assert frame.startswith("<iframe srcdoc=")
    assert "<script>" not in page
    assert "Step 3." in page
    assert "+0.50" in page


def test_a_page_is_saved_and_never_over_a_file(tmp_path: Path) -> None:
    page = Page("<p>é</p>", "a page", 100)
    saved = page.save(tmp_path / "page.html")
    assert saved.read_text(encoding="utf-8") == "<p>é</p>"
    with pytest.raises(ConfigError, match="exists already"):
        Page("other", "a page", 100).save(saved)
    assert saved.read_text(encoding="utf-8") == "<p>é</p>"
