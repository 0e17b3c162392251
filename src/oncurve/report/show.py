"""`oncurve show`: a step's groups, or one of them with the tokens that its step has changed most; what flipped.

The groups that a page shows are here, too, in their order, as values for its template.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from oncurve.base.errors import ConfigError, RunDirectoryError
from oncurve.base.output import visible
from oncurve.report.index import RolloutIndex
from oncurve.report.records import RunRecord, read_run
from oncurve.report.rollouts import EvaluationFiles, compared, steps_in_words
from oncurve.report.templates import figure, one_line, rendered
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


MOST_CHANGED = 5
"""Tokens that are named, of a group and of each completion."""

ABOUT = ("reward", "parts", "valid", "fault", "extras", "advantage", "ended", "text", "turns", "outcome")


def link(run: str, *parts: int | str | None) -> str:
    """Return the link `#/run/step/group/completion/token` to a place in a run, as far as its `parts` are given.

    Example: `link("runs/sums", 40, 3)` is "#/runs%2Fsums/40/3".
    """
    return "/".join(["#", *(quote(str(part), safe="") for part in (run, *parts) if part is not None)])


def look_at(
    run: Path, step: int | None = None, group: int | None = None, completion: int | None = None
) -> dict[str, Any]:
    """Return a step's rows, or with a `group` that group, as plain values. `step` None: the newest.

    {"run": "sums", "step": 40, "link": ..., "rows": [...], "most_changed": [...]}   or, with a group,
    {"run": "sums", "step": 40, "link": ..., "row": {...}, "prompt": {...}, "most_changed": [...], "completions": [
        {"completion": 5, "link": ..., "reward": 1.0, "parts": {...}, "advantage": 0.7, "ended": "eos", "text": "4",
         "tokens": 2, "most_changed": [{"group": 3, "completion": 5, "token": 0, "piece": "4", "before": 0.31,
         "after": 0.45, "change": 0.14, "link": ...}]}]}

    The best completion comes first, the worst second, the others follow by their reward; `completion` leaves one of
    them. `before` and `after` are the token's probabilities before and after the step's updates. `most_changed` is null
    where the step was not measured (`rollouts.tokens_every`).

    Raises RunDirectoryError: it is no run, or has no such step or group. ConfigError: no such completion.
    """
    known, name, index = read_run(run).steps, run.resolve().name, RolloutIndex(run)
    if not known or (step is not None and step not in known):
        lacking = f"{run} has no groups" if step is None else f"{run} has no groups of step {step}"
        raise RunDirectoryError(f"{lacking}; there are those of: {steps_in_words(known, step)}")
    step = known[-1] if step is None else step
    found: dict[str, Any] = {"run": name, "step": step, "link": link(name, step, group, completion)}
    if group is None:
        return found | {"rows": index.rows(step), "most_changed": most_changed(index, name, step)}
    try:
        record, row = index.group(step, group), index.row(step, group)
    except KeyError as error:
        last = len(index.columns(step)["group"]) - 1
        raise RunDirectoryError(f"step {step} of {run} has the groups 0 to {last}, got {group}") from error
    items = list(enumerate(record["completions"]))
    if completion is not None and not 0 <= completion < len(items):
        raise ConfigError(f"--completion: the group has the completions 0 to {len(items) - 1}, got {completion}")
    items.sort(key=lambda pair: (-_number(pair[1], "reward"), -_number(pair[1], "advantage"), pair[0]))
    items = [*items[:1], *items[:0:-1][:1], *items[1:-1]]
    completions = [_completion(*pair, (name, step, group)) for pair in items if completion in (None, pair[0])]
    changed = [token for each in completions for token in each["most_changed"] or ()]
    return found | {
        "row": row,
        "prompt": {key: value for key, value in record["prompt"].items() if key != "ids"},
        "most_changed": _most(changed) if any(each["most_changed"] is not None for each in completions) else None,
        "completions": completions,
    }


def most_changed(index: RolloutIndex, name: str, step: int) -> list[dict[str, Any]] | None:
    """Return the tokens that a step of a run of this `name` changed most; None where it was not measured."""
    groups = index.changed(step, 10 * MOST_CHANGED)
    if groups is None:
        return None
    items = [(group, *pair) for group in groups for pair in enumerate(index.group(step, group)["completions"])]
    found = (_completion(number, item, (name, step, group))["most_changed"] for group, number, item in items)
    return _most(token for each in found for token in each or ())


def _number(item: Mapping[str, Any], key: str) -> float:
    value = item.get(key)
    return -math.inf if value is None else float(value)


def _completion(number: int, item: Mapping[str, Any], place: tuple[str, int, int]) -> dict[str, Any]:
    before, after, pieces = (item.get(key) for key in ("before", "after", "pieces"))
    here, changed = link(*place, number), None
    if before is not None and after is not None:
        changed = _most(
            {
                "group": place[2],
                "completion": number,
                "token": token,
                "piece": pieces[token] if pieces else str(item["ids"][token]),
                "before": math.exp(first),
                "after": math.exp(last),
                "change": math.exp(last) - math.exp(first),
                "link": f"{here}/{token}",
            }
            for token, (first, last) in enumerate(zip(before, after, strict=True))
            if first is not None and last is not None
        )
    return {
        "completion": number,
        "link": here,
        "tokens": len(item["ids"]),
        **{key: item[key] for key in ABOUT if item.get(key) is not None},
        "most_changed": changed,
    }


def _most(tokens: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tokens that changed most, each once: completions that begin alike have changed alike."""
    ranked = sorted(tokens, key=lambda token: -abs(token["change"]))
    alike = {(each["group"], each["token"], each["piece"], round(each["change"], 5)): each for each in reversed(ranked)}
    return list(alike.values())[: -MOST_CHANGED - 1 : -1]


def look_at_flips(
    run: Path, first: int | None = None, last: int | None = None, problem: int | None = None
) -> dict[str, Any]:
    """Return `compared` with links; of a `problem` in place of all its `results` in both evaluations.

    Raises RunDirectoryError: the run has no such evaluation. KeyError: they have no such problem.
    """
    name, found = run.resolve().name, compared(run, first, last)
    steps = found["first"], found["last"]
    found |= {"run": name, "link": link(name, "evaluation", *steps, problem)}
    for each in found["problems"]:
        each["link"] = link(name, "evaluation", *steps, each["problem"])
    if problem is None:
        return found
    if problem not in {each["problem"] for each in found.pop("problems")}:
        raise KeyError(problem)
    results = [{"step": step, **EvaluationFiles(run).read(step)[problem]} for step in steps]
    return found | {"problem": problem, "results": results}


def show_text(found: Mapping[str, Any]) -> str:
    """Return what `look_at` or `look_at_flips` returns as lines for a terminal."""
    changed = [
        (
            f"group {each['group']}, completion {each['completion']}, token {each['token']}",
            visible(repr(each["piece"])),
            f"{each['before']:.4f} → {each['after']:.4f}",
            f"{each['change']:+.4f}",
            each["link"],
        )
        for each in found.get("most_changed") or ()
    ]
    tables = {"listed": table(_listed(found)), "changed": table(changed)}
    return rendered("show.j2", found=found, endings=ENDINGS, text_of=text_of, **tables).rstrip("\n")


def _listed(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the groups of a step, or of the problems that flipped, below their titles."""
    if "rows" in found:
        names = ("group", "prompt_id", "mean", "spread", "right", "truncated", "invalid", "length", "largest")
        rows = [(*(figure(row[name]) for name in names), one_line(row["prompt"])) for row in found["rows"]]
        return [(*names, "prompt"), *rows]
    flipped = [each for each in found.get("problems", ()) if " to " in each["change"]]
    return [("problem", "change", "samples", "prompt", "")] * bool(flipped) + [
        (
            str(each["problem"]),
            each["change"],
            " → ".join("-" if pair is None else f"{pair[0]}/{pair[1]}" for pair in each["samples"]),
            one_line(each["prompt"]),
            each["link"],
        )
        for each in flipped
    ]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
