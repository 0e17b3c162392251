"""Rules of what the policy writes, of its episodes, and of what a run costs.

Lengths that collapse or grow, and suspects of reward hacking; endings at a limit, tools that fail, turns that are never
rewarded; rewards that fail, phases that take too long, memory near its limit.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from oncurve.doctor.case import MOST, Case, such_as

FAULTS = 0.1
"""The share of completions without a usable reward from which the reward is broken."""

WAITING, CROWDED = 0.5, 1 / 3
"""The share of a step's time spent waiting for rewards, and on the run queue (per thread), from which it is a hint."""


def reward_faults(case: Case) -> str | None:
    prompts, size = case.setting("data.prompts_per_step"), case.setting("rollout.group_size")
    invalid = case.total("completions/invalid")
    if not invalid or not isinstance(prompts, int) or not isinstance(size, int):
        return None
    sampled = case.total("groups/sampled") * size or case.span * prompts * size
    if invalid < FAULTS * sampled:
        return None
    return f"{invalid:.0f} of the last {sampled:.0f} completions have no usable reward"


def _share_of_step(case: Case, key: str) -> float:
    part, step = case.mean(key), case.mean("time/step")
    return part / step if part is not None and step else 0.0


def slow_rewards(case: Case) -> str | None:
    share = _share_of_step(case, "time/reward")
    if share < WAITING:
        return None
    return f"In the last {case.span} steps {share:.0%} of the time is spent waiting for rewards (time/reward)"


def crowded_processors(case: Case) -> str | None:
    threads = case.setting("run.threads")
    share = _share_of_step(case, "time/processor_wait") / (threads if isinstance(threads, int) else 1)
    if share < CROWDED:
        return None
    waited = f"threads waited for a processor {share:.2g} seconds per second of a step (time/processor_wait)"
    return f"In the last {case.span} steps {waited}"


def memory_near_limit(case: Case) -> str | None:
    repeated, peak = case.total("optim/out_of_memory"), case.last("memory/peak_bytes", 1)
    if repeated:
        return f"In the last {case.span} steps {repeated:.0f} updates ran out of memory and were repeated"
    if not peak or not case.memory or peak[0] < MOST * case.memory:
        return None
    return f"The peak is {peak[0] / 2**30:.3g} GiB of {case.memory / 2**30:.3g} GiB, {peak[0] / case.memory:.0%}"


MANY, FAILING, BROKEN = 0.5, 0.8, 0.1
"""The shares of episodes at the limit, of failing calls, of episodes without a reward, from which a rule holds."""


def turns_run_out(case: Case) -> str | None:
    share = case.mean("turns/limit")
    if share is None or share < MANY:
        return None
    return f"{share:.0%} of the episodes are not over when they have had the most turns (environment.max_turns)"


def tools_fail(case: Case) -> str | None:
    calls, errors = case.mean("tools/calls"), case.mean("tools/errors")
    if not calls or errors is None or errors < FAILING * calls:
        return None
    return f"{errors / calls:.0%} of the tool calls get an error"


def no_tool_calls(case: Case) -> str | None:
    return "No completion has a tool call that can be read" if case.mean("tools/calls") == 0 else None


def no_turn_rewarded(case: Case) -> str | None:
    advantage = case.settings.get("advantage", {})
    by_turn = isinstance(advantage, Mapping) and advantage.get("kind") == "process"
    return "No turn has had a reward other than 0" if by_turn and case.mean("turns/rewarded") == 0 else None


def environment_fails(case: Case) -> str | None:
    faults, invalid = case.mean("environment/faults"), case.mean("completions/invalid")
    if not faults or not invalid or faults < BROKEN * invalid:
        return None
    return f"In {faults:.3g} episodes per step the environment failed, and they are not trained"


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
