"""Writes docs/metrics.md from the table of declared metrics, so that code and page cannot disagree.

python scripts/make_metrics_doc.py            write it
python scripts/make_metrics_doc.py --check    say whether it is current (exit code 1 if not)
"""

from __future__ import annotations

import sys
from pathlib import Path

from oncurve.metrics import METRICS, Metric

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

HEAD = """\
# Metrics

Every number that a run writes to `metrics.jsonl`, one line a step. A key that is not here cannot be logged: it is
declared in `src/oncurve/metrics/` with the way its observations are reduced, and this page is made from there by
`scripts/make_metrics_doc.py`. When a run looks odd, look at these first:

| look first at | because |
|---|---|
| `reward` | it is what training is to raise |
| `constant_groups` | a group whose rewards are all the same has no gradient: near 1, nothing is learned |
| `kl` | how far the policy has gone from where it started |
| `entropy` | at 0 the policy no longer explores |
| `completion_length`, `truncated_fraction` | growth without reward, and answers that are cut off |

A run says so itself, once, with the settings to change, where the last 3 steps have `constant_groups` of 0.9 or more,
`truncated_fraction` of 0.95 or more, an `entropy` below 0.01, after step 40 a `kl` below a thousandth of `kl_coef`, or
a reward that falls while `kl` jumps. Rewards between 0 and 1 that are mostly 1 are left alone: the task is solved.

Notation: a group has G completions o_i with rewards r_i; t is a completion token; ρ = π_θ/π_old and
d = log π_θ - log π_ref at a sampled token; Â is the advantage. *Trained tokens* are those with `loss_mask` on.
"""

SECTION = """
## `{name}`

{meaning}

* Formula: {formula}
* Unit: {unit}; over a step: {reduction}
* When it looks wrong: {advice}
"""

REDUCTIONS = {
    "mean": "the mean of all observations",
    "sum": "the sum",
    "max": "the largest",
    "last": "the last one",
}


def page(metrics: dict[str, Metric]) -> str:
    """The whole page, in the order of the table."""
    listed = "\n".join(f"[`{name}`](#{anchor(name)})" + (" ·" if name != list(metrics)[-1] else "") for name in metrics)
    sections = (
        SECTION.format(
            name=name,
            meaning=metric.meaning,
            formula=code(metric.formula),
            unit="none" if metric.unit == "1" else metric.unit,
            reduction=REDUCTIONS[metric.reduction],
            advice=metric.advice,
        )
        for name, metric in metrics.items()
    )
    return f"{HEAD}\n{listed}\n{''.join(sections)}"


def code(text: str) -> str:
    """`text` as inline code, so that neither `|` nor `*` nor `_` in a formula is taken for Markdown."""
    return f"`{text}`"


def anchor(name: str) -> str:
    """The anchor that GitHub makes of a heading: lower case, only letters, digits, `_` and `-`."""
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter in "_-")


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` compare it. Returns the exit code."""
    text = page(METRICS)
    if arguments == ["--check"]:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        sys.stdout.write(f"{PAGE.name} is {'current' if current else 'out of date: run scripts/make_metrics_doc.py'}\n")
        return 0 if current else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
