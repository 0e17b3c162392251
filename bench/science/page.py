"""`python -m bench.science.page` writes the table and the picture of `docs/science.md` from the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.science.off_policy import METHODS, RESULTS, accuracies, interval, table

__all__ = ["PAGE", "filled", "main", "plot"]

PAGE = Path(__file__).parents[2] / "docs" / "science.md"
BLOCK = re.compile(r"(<!-- begin off_policy -->\n).*?(<!-- end off_policy -->)", re.DOTALL)


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with the part between its markers written from the results."""
    part = f"{table(results)}\n\n![accuracy by the size of the noise](science/off_policy.svg)"
    return BLOCK.sub(lambda found: f"{found[1]}{part}\n{found[2]}", page)


def plot(results: dict[str, Any], path: Path) -> None:
    """Accuracy at the end over the size of the noise, a curve per method, with its intervals over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "oncurve"  # the same picture has the same bytes
    from matplotlib import pyplot

    sizes = sorted({run["size"] for run in results["runs"]})
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for place, method in enumerate(METHODS):
        known = [size for size in sizes if accuracies(results, method, size)]
        found = [interval(accuracies(results, method, size)) for size in known]
        shifted = [size + 0.02 * (place - 1.5) for size in known]  # so that intervals do not hide each other
        means, halves = zip(*found, strict=True)
        axes.errorbar(shifted, means, yerr=halves, marker="o", ms=4, capsize=3, lw=1.5, label=method)
    axes.set_xlabel("s, standard deviation of the noise on the sampler's logits")
    axes.set_ylabel("held-out greedy accuracy at the end")
    axes.set_ylim(0, 1)
    axes.legend(title="correction")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Rewrite the page and its picture."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    plot(results, PAGE.with_suffix("") / "off_policy.svg")
    print(f"{PAGE.name} is written from the results")


if __name__ == "__main__":
    main()
