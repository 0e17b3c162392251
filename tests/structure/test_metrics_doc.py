import importlib.util
from pathlib import Path

from oncurve.metrics import METRICS

ROOT = Path(__file__).parents[2]


def maker():
    spec = importlib.util.spec_from_file_location("make_metrics_doc", ROOT / "scripts" / "make_metrics_doc.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_metrics_is_current(capsys) -> None:
    assert maker().main(["--check"]) == 0, capsys.readouterr().out


def test_every_metric_is_on_the_page_with_its_formula_and_advice() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name, metric in METRICS.items():
        assert f"\n## `{name}`\n" in text
        assert metric.formula in text
        assert metric.advice in text


def test_an_old_page_is_noticed(tmp_path, monkeypatch) -> None:
    module = maker()
    monkeypatch.setattr(module, "PAGE", tmp_path / "docs" / "metrics.md")
    assert module.main(["--check"]) == 1
    assert module.main([]) == 0
    assert module.main(["--check"]) == 0
