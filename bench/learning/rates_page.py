"""`python -m bench.learning.rates_page` writes table and picture of `docs/learning-rates.md` from the results.

The picture needs matplotlib, which the benchmark's environment has; `--table` writes the table alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.learning.adapters import at_the_end
from bench.learning.rates import CASES, OUT, ROOT
from bench.learning.runs import STEP_KL, filled

__all__ = ["PAGE", "Row", "lines_of", "page_of", "plot", "rows", "sizes", "table"]

PAGE = ROOT / "docs" / "learning-rates.md"
READ_AT = 10
"""The step whose `policy/kl` is in the table: early enough to stop a run, late enough to be above the noise."""

LEFT = 1.0
"""Nats per token from the reference, from which a rate counts as too high whatever the reward is."""

LOST = 0.5
"""The share of its best mean reward of five steps that a run has to keep."""

RATE_ALARMS = ("rate-too-high", "kl-runaway", "rate-too-low")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red")


@dataclass(frozen=True)
class Row:
    """A case at one rate, over its seeds.

    ends       the reward at the end, by seed          step_kl   the median over seeds and steps after the first
    kl         `policy/kl` at step `READ_AT`           last_kl   its median in the last quarter of the steps
    verdict    "slow", "good" or "too high"            alarms    the doctor's alarms of rates, with the earliest step
    """

    case: str
    rate: float
    ends: tuple[float, ...]
    step_kl: float
    kl: float
    last_kl: float
    verdict: str
    alarms: dict[str, int]

    @property
    def end(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.ends)


def lines_of(run: dict[str, Any]) -> list[dict[str, float]]:
    """The curves of a run as lines of `metrics.jsonl`, for the doctor's rules."""
    curves = {"reward/mean": run["reward_mean"], **{key: run["curves"][key] for key in run["curves"] if key != STEP_KL}}
    return [
        {"step": number + 1, **{key: values[number] for key, values in curves.items()}}
        for number in range(len(run["reward_mean"]))
    ]


def alarms_of(run: dict[str, Any], prompts: int) -> dict[str, int]:
    """The doctor's alarms of rates in a run with so many prompts per step, and the first step of each."""
    from oncurve.doctor import Case, examine

    lines, found = lines_of(run), {}
    for count in range(1, len(lines) + 1):
        seen = Case(lines[:count][-40:], lines[:5], (), {"data": {"prompts_per_step": prompts}})
        for finding in examine(seen):
            if finding.rule in RATE_ALARMS:
                found.setdefault(finding.rule, count)
    return found


def broken(run: dict[str, Any]) -> bool:
    """Whether a run has lost half of its best reward, or is a nat per token from the model that it began as."""
    rewards, kl = run["reward_mean"], run["curves"]["policy/kl"]
    best = max(statistics.fmean(rewards[first : first + 5]) for first in range(len(rewards) - 4))
    return at_the_end(run) < LOST * best or statistics.median(kl[-max(1, len(kl) // 4) :]) >= LEFT


def rows(found: dict[str, Any]) -> list[Row]:
    """Every case and rate. "good": not broken, and within two standard errors of the best of its case."""
    by_case: dict[str, dict[float, dict[str, Any]]] = {}
    for name, runs in found["runs"].items():
        case, _, rate = name.rpartition(" ")
        by_case.setdefault(case, {})[float(rate)] = runs
    made = []
    for case, by_rate in sorted(by_case.items()):
        lost = {rate: sum(map(broken, runs.values())) * 2 >= len(runs) for rate, runs in by_rate.items()}
        sound = [runs for rate, runs in by_rate.items() if not lost[rate]]
        best = max(statistics.fmean(map(at_the_end, runs.values())) for runs in sound)
        noise = 2 * standard_error([[at_the_end(run) for run in runs.values()] for runs in sound])
        for rate, runs in sorted(by_rate.items()):
            ends = tuple(at_the_end(runs[seed]) for seed in sorted(runs))
            good = "good" if statistics.fmean(ends) >= best - noise else "slow"
            made.append(_row(case, rate, ends, "too high" if lost[rate] else good, list(runs.values())))
    return made


def standard_error(ends: list[list[float]]) -> float:
    """Of a difference of two means over seeds: the deviation is pooled over rates, (Σ s²/n)^½ · (2/seeds)^½."""
    several = [values for values in ends if len(values) > 1]
    if not several:
        return math.inf
    variance = statistics.fmean(statistics.variance(values) for values in several)
    return math.sqrt(2 * variance / min(map(len, several)))


def _row(case: str, rate: float, ends: tuple[float, ...], verdict: str, runs: list[dict[str, Any]]) -> Row:
    kl = [run["curves"]["policy/kl"] for run in runs]
    alarms: dict[str, int] = {}
    for run in runs:
        for name, step in alarms_of(run, 16 if case.startswith("arithmetic") else 8).items():
            alarms[name] = min(step, alarms.get(name, step))
    return Row(
        case,
        rate,
        ends,
        statistics.median(value for run in runs for value in run["curves"][STEP_KL][1:]),
        statistics.median(values[READ_AT - 1] for values in kl),
        statistics.median(value for values in kl for value in values[-max(1, len(values) // 4) :]),
        verdict,
        alarms,
    )


def exponent(rows_of_case: list[Row]) -> float:
    """p of KL ~ rateᵖ at step `READ_AT`: the slope of the logarithms, by least squares, over rates that do not break.

    Raises statistics.StatisticsError for fewer than two.
    """
    sound = [row for row in rows_of_case if row.verdict != "too high"]
    return statistics.linear_regression(
        [math.log(row.rate) for row in sound], [math.log(row.kl) for row in sound]
    ).slope


def table(found: dict[str, Any]) -> str:
    """The table of the page, and the exponents below it."""
    lines = [
        f"| task, model | rate | reward at the end (range over seeds) | KL per step | `policy/kl` at step {READ_AT} | "
        "and at the end | rate is | doctor's alarm |",
        "|---|---|---|---|---|---|---|---|",
    ]
    made = rows(found)
    for row in made:
        spread = f" ({min(row.ends):.2f} to {max(row.ends):.2f})" if len(row.ends) > 1 else ""
        alarms = ", ".join(f"`{name}` (step {step})" for name, step in row.alarms.items())
        verdict = f"**{row.verdict}**" if row.verdict == "good" else row.verdict
        lines.append(
            f"| {row.case} | {short(row.rate)} | {row.end:.2f}{spread} | {short(row.step_kl)} | {short(row.kl)} | "
            f"{short(row.last_kl)} | {verdict} | {alarms} |"
        )
    own = {case: [row for row in made if row.case == case] for case in CASES}
    powers = [
        f"{case} {exponent(of_case):.2f}"
        for case, of_case in own.items()
        if sum(row.verdict != "too high" for row in of_case) > 1
    ]
    minutes = sum(run["processor_seconds"] for runs in found["runs"].values() for run in runs.values()) / 60
    below = (
        f"The exponent p in KL ~ rateᵖ, where nothing breaks: {', '.join(powers)}. Training took {minutes:.0f} minutes."
    )
    return "\n".join([*lines, "", below])


def sizes(found: dict[str, Any]) -> str:
    """The good rates of each case with its recipe's KL term, by the model's number of parameters."""
    made = {case: [row for row in rows(found) if row.case == case and row.verdict == "good"] for case in CASES}
    lines = [f"| parameters | task | good rates | their `policy/kl` at step {READ_AT} |", "|---|---|---|---|"]
    counted = []
    for case in (case for case in CASES if CASES[case].kl_coef is None):
        parameters = next(iter(found["runs"][f"{case} {made[case][0].rate:g}"].values()))["parameters"]
        rates, kls = (", ".join(short(getattr(row, name)) for row in made[case]) for name in ("rate", "kl"))
        counted.append((parameters, f"| {parameters:,} | {case.partition(' ')[0]} | {rates} | {kls} |"))
    return "\n".join([*lines, *(line for _, line in sorted(counted))])


def short(value: float) -> str:
    """Two digits: "0.044", "3e-4"."""
    return f"{value:.2g}" if value >= 0.001 else f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


def page_of(page: str, found: dict[str, Any]) -> str:
    """The page with the parts between its marks written from the results."""
    picture = "![reward at the end by learning rate, and by KL](learning-rates/rates.svg)"
    return filled(filled(page, "rates", f"{table(found)}\n\n{picture}"), "sizes", sizes(found))


def plot(found: dict[str, Any], path: Path) -> None:
    """The reward at the end over the rate, and over the KL at step `READ_AT`, a curve per case."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "oncurve"  # the same picture has the same bytes
    from matplotlib import pyplot

    made = rows(found)
    figure, (by_rate, by_kl) = pyplot.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    for case, colour in zip(dict.fromkeys(row.case for row in made), COLOURS, strict=False):
        own = [row for row in made if row.case == case]
        for axes, places in ((by_rate, [row.rate for row in own]), (by_kl, [row.kl for row in own])):
            axes.plot(places, [row.end for row in own], color=colour, lw=1, label=case)
            for row, place in zip(own, places, strict=True):
                marker = {"good": "o", "slow": "v", "too high": "x"}[row.verdict]
                axes.vlines(place, min(row.ends), max(row.ends), color=colour, lw=1)
                axes.plot(place, row.end, marker, color=colour, ms=6)
    by_rate.set(xscale="log", xlabel="learning rate", ylabel="reward at the end")
    by_kl.set(xscale="log", xlabel=f"policy/kl at step {READ_AT}, nats per token")
    by_rate.set_ylim(-0.02, 1.03)
    by_kl.plot([], [], "o", color="grey", label="good")
    by_kl.plot([], [], "v", color="grey", label="slow")
    by_kl.plot([], [], "x", color="grey", label="too high")
    figure.legend(*by_kl.get_legend_handles_labels(), loc="outside upper center", ncols=7, fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> int:
    """Rewrite the page and its picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="leave the picture as it is")
    given = parser.parse_args()
    found = json.loads(OUT.read_text(encoding="utf-8"))
    PAGE.write_text(page_of(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    if not given.table:
        plot(found, PAGE.with_suffix("") / "rates.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
