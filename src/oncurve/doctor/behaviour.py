"""Rules of what the policy writes: lengths that collapse or grow, and suspects of reward hacking."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from oncurve.doctor.case import MOST, Case, such_as

SHRUNK, GREW = 0.25, 2.0
"""The mean length as a multiple of that of the first steps, from which a rule of lengths holds."""

CUT = 0.3
"""The share of truncated completions that makes growth an illness, and that explains why lengths fall."""

LEAST_SAMPLES = 30
SAME_TEXT, LEAST_PROMPTS, LEAST_LENGTH = 0.5, 4, 8
"""The share of completions with one text, over how many prompts, and of what length in tokens: answers of one letter
are often the same."""


def length_collapse(case: Case) -> str | None:
    now, first = case.mean("completions/length"), case.at_first("completions/length")
    cut = [line.get("completions/truncated", 0.0) for line in case.opening]
    if now is None or first is None or now > SHRUNK * first or statistics.fmean(cut) >= CUT:
        return None
    return f"The mean length is {now:.3g} tokens; in the first steps it was {first:.3g}"


def length_growth(case: Case) -> str | None:
    now, cut = case.mean("completions/length"), case.mean("completions/truncated")
    lengths = [line["completions/length"] for line in case.opening if "completions/length" in line]
    apart = case.at_first("completions/length") is not None
    cut_first = min((line.get("completions/truncated", 0.0) for line in case.opening), default=1.0)
    if now is None or cut is None or not apart or now < GREW * min(lengths) or cut - cut_first < CUT:
        return None
    return (
        f"The mean length grew from {min(lengths):.3g} to {now:.3g} tokens, and {cut:.0%} of the completions are cut "
        f"off (at first {cut_first:.0%})"
    )


def length_correlation(case: Case) -> str | None:
    """Return the correlation of reward and length within groups, pooled: both less their group's mean."""
    rewards: list[float] = []
    lengths: list[float] = []
    for _, scored in case.scored():
        values = [reward for _, reward in scored]
        if len(values) > 1 and max(values) > min(values):
            rewards += _centred(values)
            lengths += _centred([sample.length for sample, _ in scored])
    size = math.sqrt(math.fsum(x * x for x in rewards) * math.fsum(y * y for y in lengths))
    if len(rewards) < LEAST_SAMPLES or size == 0:
        return None
    correlation = math.fsum(x * y for x, y in zip(rewards, lengths, strict=True)) / size
    if abs(correlation) < MOST:
        return None
    mixed = (group for group, scored in case.scored() if len({reward for _, reward in scored}) > 1)
    over = f"over {len(rewards)} completions{such_as(mixed)}"
    return f"Within groups, reward and length correlate by {correlation:+.2f} {over}"


def _centred(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [value - mean for value in values]


def one_text(case: Case) -> str | None:
    samples = [sample for group in case.groups for sample in group.samples]
    if len(samples) < LEAST_SAMPLES or statistics.fmean(sample.length for sample in samples) < LEAST_LENGTH:
        return None
    text, count = Counter(sample.text for sample in samples).most_common(1)[0]
    having = [group for group in case.groups if any(sample.text == text for sample in group.samples)]
    rewarded = any(sample.reward for sample in samples if sample.text == text)  # else it is no text that pays
    if count < SAME_TEXT * len(samples) or len(having) < LEAST_PROMPTS or not rewarded:
        return None
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    of = f"{count} of the last {len(samples)} completions, over {len(having)} prompts"
    return f"{of}, are the same text: {shown!r}{such_as(having)}"


def one_part_dominates(case: Case) -> str | None:
    """Return one part makes nearly all differences of rewards within groups, while the mean of another has fallen."""
    spread: Counter[str] = Counter()
    for _, scored in case.scored():
        parts = [sample.parts for sample, _ in scored]
        for name, weight in _weights(parts[0] if parts else {}, case).items():
            values = [value for part in parts if (value := part.get(name)) is not None]
            if len(values) > 1:
                spread[name] += weight**2 * math.fsum(x * x for x in _centred(values))  # type: ignore[assignment]
    total = math.fsum(spread.values())
    if len(spread) < 2 or not total:
        return None
    name, most = spread.most_common(1)[0]
    fallen = next((text for other in spread if other != name and (text := _fallen(case, other))), None)
    if most < MOST * total or fallen is None:
        return None
    return f"The reward {name!r} makes {most / total:.0%} of the differences within groups, while {fallen}"


def _weights(parts: Mapping[str, float | None], case: Case) -> dict[str, float]:
    """Return the weight of each part, from the settings, where these have as many rewards; else 1."""
    tables = case.settings.get("rewards", ())
    given = [float(table.get("weight", 1.0)) for table in tables if isinstance(table, Mapping)]
    return dict(zip(parts, given if len(given) == len(parts) else [1.0] * len(parts), strict=True))


def _fallen(case: Case, name: str) -> str | None:
    now, first = case.mean(f"rewards/{name}"), case.at_first(f"rewards/{name}")
    if now is None or first is None or first - now < max(0.05, 0.25 * abs(first)):
        return None
    return f"{name!r} fell from {first:.3g} to {now:.3g}"
