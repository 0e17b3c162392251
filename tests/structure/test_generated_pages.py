"""The pages that a script makes are current."""

from pathlib import Path

import pytest

from fakes.scripts import script
from oncurve.metrics import METRICS

ROOT = Path(__file__).parents[2]
every_page = pytest.mark.parametrize("page", ["metrics", "configuration", "coming_from"])


@every_page
def test_the_page_is_current(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert script(f"make_{page}_doc").main(["--check"]) == 0, capsys.readouterr().out


@every_page
def test_an_old_page_is_noticed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script(f"make_{page}_doc")
    monkeypatch.setattr(module, "PAGE", tmp_path / "docs" / "page.md")
    assert [module.main(words) for words in (["--check"], [], ["--check"])] == [1, 0, 0]


def test_every_metric_is_on_the_page_with_its_formula_and_advice() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    parts = [part for name, metric in METRICS.items() for part in (f"\n## `{name}`\n", metric.formula, metric.advice)]
    assert [part for part in parts if part not in text] == []
