"""The groups that a page shows, in their order, as values for its template."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.report.records import RunRecord
from oncurve.steps import pieces

GROUPS_SHOWN = 2  # from the first step, and as many from the last
COMPLETIONS_SHOWN = 8
LONGEST_TEXT = 6000  # characters of a prompt or completion on the page; rollouts/ has all of it

TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
ENDINGS: dict[str, str] = TABLES["endings"]
"""The ways in which a completion ends, in words."""


def shown_groups(run: RunRecord, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return the groups of each step whose rewards differ most, in their order."""
    shown = []
    for step in steps:
        groups = run.groups(step)
        ranked = sorted(range(len(groups)), key=lambda index: (-_spread(groups[index]), index))
        named = answer_column(run.config or {})
        shown += [shown_group(step, groups[index], named) for index in sorted(ranked[:GROUPS_SHOWN])]
    return shown


def _rewards(group: Mapping[str, Any]) -> list[float]:
    return [item["reward"] for item in group["completions"] if item.get("reward") is not None]


def _spread(group: Mapping[str, Any]) -> float:
    rewards = _rewards(group)
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    return math.hypot(*(reward - mean for reward in rewards))


def answer_column(settings: Mapping[str, Any]) -> str | None:
    """Return the column that a reward names as that of the right answer; None where none does."""
    rewards = settings.get("rewards", ())
    columns = [item.get("answer") for item in rewards if isinstance(item, Mapping)]
    return next((column for column in columns if isinstance(column, str)), None)


def answer_of_row(columns: Mapping[str, Any], named: str | None) -> str | None:
    """Return the text of the column `named`, or of the first that usually has the right answer; None without one."""
    values = (columns.get(column) for column in filter(None, (named, *TABLES["answer_columns"])))
    return next((str(each) for each in values if isinstance(each, (str, int, float)) and str(each).strip()), None)


def shown_group(step: int | None, group: Mapping[str, Any], named: str | None = None) -> dict[str, Any]:
    """Return a group as the page shows it; without a `step` it is of none. `named`: the column of the right answer."""
    completions = sorted(group["completions"], key=lambda item: -(item.get("advantage") or 0.0))
    total = len(completions)
    if total > COMPLETIONS_SHOWN:  # evenly over the ranks, the best and the worst among them
        last = COMPLETIONS_SHOWN - 1
        completions = [completions[round(rank * (total - 1) / last)] for rank in range(COMPLETIONS_SHOWN)]
    largest = max((abs(item.get("advantage") or 0.0) for item in completions), default=0.0) or 1.0
    rewards = _rewards(group)
    return {
        "step": step,
        "prompt": group["prompt"]["text"][:LONGEST_TEXT],
        "answer": (answer_of_row(group["prompt"].get("columns") or {}, named) or "")[:LONGEST_TEXT],
        "rewards": rewards,
        "mean": math.fsum(rewards) / len(rewards) if rewards else None,
        "deviation": _spread(group) / math.sqrt(max(1, len(rewards) - 1)),
        "constant": len(set(rewards)) == 1 and not any(item.get("advantage") for item in completions),
        "total": total,
        "completions": [_shown_completion(item, largest) for item in completions],
    }


def _shown_completion(item: Mapping[str, Any], largest: float) -> dict[str, Any]:
    """Return the record of a completion with what the page adds. `share` is advantage / `largest`, in -100..100.

    Where its steps were scored they are in `steps`, and `text` is what follows the last of them.
    """
    text, steps = text_of(item), _shown_steps(item)
    end = item["step_offsets"][-1] if steps else 0
    return {
        "reward": None,
        "fault": None,
        "parts": {},
        **item,
        "advantage": item.get("advantage"),
        "text": text[end:LONGEST_TEXT],
        "cut": max(0, len(text) - LONGEST_TEXT),
        "tokens": len(item.get("ids") or ()),
        "ending": ENDINGS.get(item["ended"], item["ended"]),
        "share": round(100 * (item.get("advantage") or 0.0) / largest, 1),
        "steps": steps,
    }


def text_of(item: Mapping[str, Any]) -> str:
    """Return the text of a completion; of an episode, its turns with their roles."""
    turns = item.get("turns") or ()
    return "\n".join(f"{turn['role']}: {turn['text']}" for turn in turns) if turns else str(item["text"])


def _shown_steps(item: Mapping[str, Any]) -> list[tuple[str, float | None, float]]:
    """Return text, reward and last token's advantage of each scored step of a completion that fits on the page.

    Empty where there are none, or their offsets are missing. A record has the advantages of tokens only where they
    differ.
    """
    offsets, rewards, tokens = (item.get(name) or [] for name in ("step_offsets", "step_rewards", "step_ends"))
    advantages = item.get("advantages") or [item.get("advantage")] * len(item.get("ids") or ())
    if not offsets or len({*map(len, (offsets, rewards, tokens))}) > 1 or max(tokens) >= len(advantages):
        return []
    if len(item["text"]) > LONGEST_TEXT:
        return []
    of_steps = zip(pieces(item["text"], offsets), rewards, tokens, strict=True)
    return [(text, reward, advantages[token] or 0.0) for text, reward, token in of_steps]
