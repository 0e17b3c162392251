"""`python -m bench.science.page` writes the tables and the pictures of `docs/science.md` from the committed results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bench.science import empty, lag, off_policy
from bench.science.study import Study, interval

__all__ = ["PAGE", "STUDIES", "filled", "main", "plot"]

PAGE = Path(__file__).parents[2] / "docs" / "science.md"
STUDIES = (off_policy.STUDY, lag.STUDY, empty.STUDY)


def filled(page: str, study: Study, results: dict[str, Any]) -> str:
    """The page with the part between the study's markers written from its results."""
    part = f"{study.table(results)}\n\n![accuracy by {study.axis}](science/{study.name}.svg)"
    block = re.compile(rf"(<!-- begin {study.name} -->\n).*?(<!-- end {study.name} -->)", re.DOTALL)
    return block.sub(lambda found: f"{found[1]}{part}\n{found[2]}", page)


def plot(study: Study, results: dict[str, Any], path: Path) -> None:
    """Accuracy at the end over the study's size, a curve per method, with its intervals over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "oncurve"  # the same picture has the same bytes
    from matplotlib import pyplot

    sizes = sorted({run["size"] for run in results["runs"]})
    apart = 0.02 * max(sizes) / 3  # so that intervals do not hide each other
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for place, method in enumerate(study.methods):
        known = [size for size in sizes if study.accuracies(results, method, size)]
        found = [interval(study.accuracies(results, method, size)) for size in known]
        shifted = [size + apart * (place - 1.5) for size in known]
        means, halves = zip(*found, strict=True)
        axes.errorbar(shifted, means, yerr=halves, marker="o", ms=4, capsize=3, lw=1.5, label=method)
    axes.set_xlabel(study.axis)
    axes.set_ylabel("held-out greedy accuracy at the end")
    axes.set_ylim(0, 1)
    axes.legend(title=study.legend)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Rewrite the page and its pictures."""
    for study in STUDIES:
        results = study.read()
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), study, results), encoding="utf-8")
        plot(study, results, PAGE.with_suffix("") / f"{study.name}.svg")
    print(f"{PAGE.name} is written from the results")


if __name__ == "__main__":
    main()
