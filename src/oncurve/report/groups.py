"""A run's groups as the page shows them: which ones, in what order, every text made safe to look at."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oncurve.report.charts import format_number
from oncurve.report.records import RunRecord
from oncurve.steps import pieces

__all__ = ["ShownCompletion", "ShownGroup", "ShownStep", "shown_groups", "visible"]

GROUPS_SHOWN = 2  # from the first step, and as many from the last
COMPLETIONS_SHOWN = 8
LONGEST_TEXT = 6000  # characters of a prompt or completion on the page; rollouts/ has all of it
ENDINGS = {"eos": "ended itself", "stop": "stop string", "length": "cut off at the limit"}

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class ShownStep:
    """One step of a completion: its text, its reward, and the advantage of its last token, `sign` "above" or so."""

    text: str
    reward: str
    advantage: str
    sign: str


@dataclass(frozen=True)
class ShownCompletion:
    """One completion as the page shows it. `share` is advantage / the group's largest, in -100..100.

    Where its steps were judged they are in `steps`, and `text` is what stands behind the last of them.
    """

    text: str
    cut: int
    tokens: int
    ended: str
    truncated: bool
    reward: str
    advantage: str
    share: float
    fault: str
    parts: tuple[tuple[str, str], ...]
    steps: tuple[ShownStep, ...] = ()


@dataclass(frozen=True)
class ShownGroup:
    """One group as the page shows it."""

    step: int
    prompt: str
    summary: str
    completions: tuple[ShownCompletion, ...]


def shown_groups(run: RunRecord, steps: Sequence[int]) -> list[ShownGroup]:
    """The groups of a step that have most to show: those whose rewards differ most, in their order."""
    shown = []
    for step in steps:
        groups = run.groups(step)
        ranked = sorted(range(len(groups)), key=lambda index: (-_spread(groups[index]), index))
        shown += [_shown_group(step, groups[index]) for index in sorted(ranked[:GROUPS_SHOWN])]
    return shown


def _rewards(group: Mapping[str, Any]) -> list[float]:
    return [item["reward"] for item in group["completions"] if item.get("reward") is not None]


def _spread(group: Mapping[str, Any]) -> float:
    rewards = _rewards(group)
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    return math.hypot(*(reward - mean for reward in rewards))


def _shown_group(step: int, group: Mapping[str, Any]) -> ShownGroup:
    completions = sorted(group["completions"], key=lambda item: -(item.get("advantage") or 0.0))
    total = len(completions)
    if total > COMPLETIONS_SHOWN:  # evenly over the ranks, the best and the worst among them
        last = COMPLETIONS_SHOWN - 1
        completions = [completions[round(rank * (total - 1) / last)] for rank in range(COMPLETIONS_SHOWN)]
    largest = max((abs(item.get("advantage") or 0.0) for item in completions), default=0.0) or 1.0
    return ShownGroup(
        step=step,
        prompt=visible(group["prompt"]["text"][:LONGEST_TEXT]),
        summary=_summary(_rewards(group), len(completions), total),
        completions=tuple(_shown_completion(item, largest) for item in completions),
    )


def _summary(rewards: Sequence[float], shown: int, total: int) -> str:
    some = f" {shown} of {total} completions are shown." if shown < total else ""
    if not rewards:
        return "No completion has a reward yet." + some
    mean = math.fsum(rewards) / len(rewards)
    if min(rewards) == max(rewards):
        return f"All rewards are {format_number(mean)}: every advantage is 0, and this group teaches nothing." + some
    deviation = math.hypot(*(reward - mean for reward in rewards)) / math.sqrt(len(rewards) - 1)
    return f"Mean reward {format_number(mean)}, standard deviation {format_number(deviation)}." + some


def _shown_completion(item: Mapping[str, Any], largest: float) -> ShownCompletion:
    text, advantage, reward = item["text"], item.get("advantage"), item.get("reward")
    parts = [(visible(name), value) for name, value in (item.get("parts") or {}).items()]
    steps = _shown_steps(item)
    behind = (item.get("step_offsets") or [0])[-1] if steps else 0
    return ShownCompletion(
        text=visible(text[behind:LONGEST_TEXT]),
        cut=max(0, len(text) - LONGEST_TEXT),
        tokens=len(item.get("ids") or ()),
        ended=ENDINGS.get(item["ended"], visible(item["ended"])),
        truncated=item["ended"] == "length",
        reward="none" if reward is None else format_number(reward),
        advantage="none" if advantage is None else f"{advantage:+.2f}".replace("-", "−"),
        share=round(100 * (advantage or 0.0) / largest, 1),
        fault=visible(item.get("fault") or ""),
        parts=tuple((name, "none" if value is None else format_number(value)) for name, value in parts)
        if len(parts) > 1
        else (),
        steps=steps,
    )


def _shown_steps(item: Mapping[str, Any]) -> tuple[ShownStep, ...]:
    """The judged steps of a completion that fits on the page; empty where there are none, or a file lacks their places.

    The advantages of tokens are in a record only where they differ.
    """
    offsets, rewards, tokens = (item.get(name) or [] for name in ("step_offsets", "step_rewards", "step_ends"))
    advantages = item.get("advantages") or [item.get("advantage")] * len(item.get("ids") or ())
    if not offsets or len({*map(len, (offsets, rewards, tokens))}) > 1 or max(tokens) >= len(advantages):
        return ()
    if len(item["text"]) > LONGEST_TEXT:
        return ()
    shown = []
    for text, reward, token in zip(pieces(item["text"], offsets), rewards, tokens, strict=True):
        advantage = advantages[token] or 0.0
        sign = "above" if advantage > 0 else "below" if advantage < 0 else "level"
        said = "none" if reward is None else format_number(reward)
        shown.append(ShownStep(visible(text), said, f"{advantage:+.2f}".replace("-", "−"), sign))
    return tuple(shown)


def visible(text: str) -> str:
    """`text` with what cannot be seen made visible: control characters as symbols, marks of direction as �.

    A completion can then neither turn the page's text around nor hide in it. Newlines and tabs stay.
    """

    def symbol(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"

    return _CONTROL.sub(symbol, text)
