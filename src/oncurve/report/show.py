"""`oncurve show`: a step's groups, or one of them with the tokens that its step has changed most; what flipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from oncurve.base.errors import ConfigError, RunDirectoryError
from oncurve.base.output import visible
from oncurve.metrics import short
from oncurve.report.evaluations import compared, results_of
from oncurve.report.groups import ENDINGS
from oncurve.report.index import RolloutIndex
from oncurve.report.records import read_run
from oncurve.report.rollouts import steps_in_words

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
        raise RunDirectoryError(f"{run} has no groups of step {step}; there are those of: {steps_in_words(known)}")
    step = known[-1] if step is None else step
    found: dict[str, Any] = {"run": name, "step": step, "link": link(name, step, group, completion)}
    rows = index.rows(step)
    if group is None:
        groups = index.changed(step, 10 * MOST_CHANGED)
        changed = (
            None if groups is None else [each for one in groups for each in look_at(run, step, one)["most_changed"]]
        )
        return found | {"rows": rows, "most_changed": changed and _most(changed)}
    try:
        record = index.group(step, group)
    except KeyError as error:
        raise RunDirectoryError(f"step {step} of {run} has the groups 0 to {len(rows) - 1}, got {group}") from error
    items = list(enumerate(record["completions"]))
    if completion is not None and not 0 <= completion < len(items):
        raise ConfigError(f"--completion: the group has the completions 0 to {len(items) - 1}, got {completion}")
    items.sort(key=lambda pair: (-_number(pair[1], "reward"), -_number(pair[1], "advantage"), pair[0]))
    items = [*items[:1], *items[:0:-1][:1], *items[1:-1]]
    place = name, step, group
    completions = [_completion(*pair, place) for pair in items if completion in (None, pair[0])]
    changed = [token for each in completions for token in each["most_changed"] or ()]
    return found | {
        "row": next(row for row in rows if row["group"] == group),
        "prompt": {key: value for key, value in record["prompt"].items() if key != "ids"},
        "most_changed": _most(changed) if any(each["most_changed"] is not None for each in completions) else None,
        "completions": completions,
    }


def _number(item: Mapping[str, Any], key: str) -> float:
    value = item.get(key)
    return -math.inf if value is None else float(value)


def _completion(number: int, item: Mapping[str, Any], place: tuple[str, int, int]) -> dict[str, Any]:
    before, after, pieces = (item.get(key) for key in ("before", "after", "pieces"))
    changed = None
    if before is not None and after is not None:
        probabilities = [
            (token, math.exp(first), math.exp(last))
            for token, (first, last) in enumerate(zip(before, after, strict=True))
            if first is not None and last is not None
        ]
        changed = _most(
            {
                "group": place[2],
                "completion": number,
                "token": token,
                "piece": pieces[token] if pieces else str(item["ids"][token]),
                "before": first,
                "after": last,
                "change": last - first,
                "link": link(*place, number, token),
            }
            for token, first, last in probabilities
        )
    about = {key: item[key] for key in ABOUT if item.get(key) is not None}
    return {
        "completion": number,
        "link": link(*place, number),
        "tokens": len(item["ids"]),
        **about,
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
    """Return `compared` with links; of a `problem` also its `results` in both evaluations.

    Raises RunDirectoryError: it is no run, or has no such evaluation. ConfigError: no such problem.
    """
    read_run(run)
    name, found = run.resolve().name, compared(run, first, last)
    place = "evaluation", found["first"], found["last"]
    found |= {"run": name, "link": link(name, *place, problem)}
    if problem is None:
        rows = [{**each, "link": link(name, *place, each["problem"])} for each in found["problems"]]
        return found | {"problems": rows}
    try:
        results = results_of(run, problem, place[1:])
    except KeyError as error:
        raise ConfigError(f"--group: these evaluations have no problem {problem}") from error
    return {key: found[key] for key in ("run", "link", "first", "last")} | {"problem": problem, "results": results}


def flips_text(found: Mapping[str, Any]) -> str:
    """Return what `look_at_flips` returns as lines for a terminal."""
    steps = f"step {found['first']} to step {found['last']}"
    if "results" in found:
        one = found["results"][0]
        lines = [f"problem {found['problem']}, {steps}   {found['link']}", "", "prompt", *_indented(one["prompt"])]
        lines += [] if one["answer"] is None else [f"answer: {_one_line(one['answer'])}"]
        for each in found["results"]:
            verdict = {True: "right", False: "wrong", None: "no verdict"}[each["right"]]
            about = f"{verdict}, reward {_short(each['reward'])}, {ENDINGS.get(each['ended'], each['ended'])}"
            about += f", {_samples(each['samples'])} samples right" if each["samples"] else ""
            lines += ["", f"after step {each['step']}: {visible(about)}", *_indented(each["reply"])]
        return "\n".join(lines)
    counts = ", ".join(f"{count} {change}" for change, count in found["counts"].items())
    flipped = [each for each in found["problems"] if " to " in each["change"]]
    rows = [
        (
            str(each["problem"]),
            each["change"],
            " → ".join(map(_samples, each["samples"])) if None not in each["samples"] else "-",
            _one_line(each["prompt"]),
            each["link"],
        )
        for each in flipped
    ]
    heads = [("problem", "change", "samples", "prompt", "")] if rows else []
    return "\n".join([f"{steps}: {counts}   {found['link']}", *(_table([*heads, *rows]) if rows else [])])


def _samples(pair: Sequence[int] | None) -> str:
    return "-" if pair is None else f"{pair[0]}/{pair[1]}"


def show_text(found: Mapping[str, Any]) -> str:
    """Return what `look_at` returns as lines for a terminal."""
    if "rows" in found:
        names = ("group", "prompt_id", "mean", "spread", "right", "truncated", "invalid", "length", "largest")
        rows = [(*(_short(row[name]) for name in names), _one_line(row["prompt"])) for row in found["rows"]]
        lines = [f"step {found['step']}   {found['link']}", *_table([(*names, "prompt"), *rows])]
    else:
        row, prompt = found["row"], found["prompt"]
        about = ", ".join(f"{name} {_short(row[name])}" for name in ("mean", "spread", "right", "truncated", "invalid"))
        lines = [f"step {found['step']}, group {row['group']}, prompt {row['prompt_id']}: {about}   {found['link']}"]
        lines += ["", "prompt", *_indented(prompt["text"])]
        lines += [f"{visible(name)}: {_one_line(str(value))}" for name, value in prompt.get("columns", {}).items()]
        for item in found["completions"]:
            lines += ["", *_completion_lines(item)]
    if found["most_changed"] is None:
        return "\n".join([*lines, "", "This step's tokens were not measured: see rollouts.tokens_every."])
    changed = [
        (
            f"group {each['group']}, completion {each['completion']}, token {each['token']}",
            visible(repr(each["piece"])),
            f"{each['before']:.4f} → {each['after']:.4f}",
            f"{each['change']:+.4f}",
            each["link"],
        )
        for each in found["most_changed"]
    ]
    return "\n".join([*lines, "", "the probabilities that this step changed most", *_table(changed)])


def _completion_lines(item: Mapping[str, Any]) -> list[str]:
    ended = ENDINGS.get(item.get("ended", ""), item.get("ended", ""))
    values = f"reward {_short(item.get('reward'))}   advantage {_short(item.get('advantage'))}"
    parts = ", ".join(f"{name} {_short(value)}" for name, value in item.get("parts", {}).items())
    lines = [f"completion {item['completion']}   {values}   {item['tokens']} tokens, {visible(ended)}"]
    lines += [f"parts: {visible(parts)}"] if parts else []
    lines += [f"fault: {_one_line(item['fault'])}"] if item.get("fault") else []
    return [*lines, *_indented(item.get("text", ""))]


def _short(value: Any) -> str:
    return "-" if value is None else short(value) if isinstance(value, float) else visible(str(value))


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))[:60]


def _indented(text: str) -> list[str]:
    return [f"  {visible(line)}" for line in text.splitlines()]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
