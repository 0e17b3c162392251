"""The page of the site about metrics, from the table of declared metrics."""

from __future__ import annotations

from oncurve.metrics import METRICS, Metric

HEAD = """\
# Metrics

Every number that a run writes to `metrics.jsonl`, one line per step. A metric is declared in `src/oncurve/metrics/`
with the way its observations are reduced; a key that is not declared cannot be logged. `oncurve config explain
reward/mean` prints what is here about one of them. When a run looks odd, look at these first:

| look first at | because |
|---|---|
| `reward/mean` | it is what training maximises |
| `groups/constant` | a group whose rewards are all the same has no gradient: near 1, nothing is learned |
| `policy/kl` | how far the policy has moved from the reference |
| `policy/entropy` | at 0 the policy no longer explores |
| `completions/length`, `completions/truncated` | growth without reward, and answers that are cut off |

A run prints an alarm with the settings to change where metrics show what is wrong: see [doctor](doctor.md), whose rules
and thresholds `oncurve doctor DIR` applies to a run on the disk.

Notation: a group has G completions o_i with rewards r_i; t is a completion token; ρ = π_θ/π_old and
d = log π_θ - log π_ref at a sampled token; Â is the advantage. *Trained tokens* are those with `loss_mask` on.

TRL and verl log the nearest quantity, if they log it, under the names in the table. Definitions differ in detail:
verl's `critic/rewards/mean` is `critic/score/mean` less the KL penalty, where that is in the reward; its
`actor/pg_clipfrac` is the sum of `policy/clip_low` and `policy/clip_high`, and `actor/ppo_kl` the mean of -log ρ; its
`perf/throughput` counts prompt tokens too, per GPU. The names of `reward_model/` are those of TRL's `RewardTrainer`.

| metric | TRL | verl |
|---|---|---|
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


def page(metrics: dict[str, Metric] = METRICS) -> str:
    """Return the whole page, in the order of the table."""
    rows = "".join(
        f"| [`{name}`](#{anchor(name)}) | {code(metric.trl)} | {code(metric.verl)} |\n"
        for name, metric in metrics.items()
    )
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
    return f"{HEAD}{rows}{''.join(sections)}"


def code(text: str) -> str:
    """Return `text` as inline code, so that neither `|` nor `*` nor `_` in a formula is taken for Markdown; ""
    stays.
    """
    return f"`{text}`" if text else ""


def anchor(name: str) -> str:
    """Return the heading's anchor on the site: lower case, letters, digits, `_` and `-`, without `<...>` at the end."""
    return "".join(letter for letter in name.lower().partition("<")[0] if letter.isalnum() or letter in "_-")
