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
from oncurve.report.evaluations import EvaluationFiles, compared
from oncurve.report.groups import ENDINGS, text_of
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
        there = steps_in_words(known, step)
        raise RunDirectoryError(f"{run} has no groups of step {step}; there are those of: {there}")
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


def _flips_text(found: Mapping[str, Any]) -> str:
    steps = f"step {found['first']} to step {found['last']}"
    if "results" in found:
        one = found["results"][0]
        lines = [f"problem {found['problem']}, {steps}   {found['link']}", "", "prompt", *_indented(one["prompt"])]
        lines += [f"answer: {_one_line(one['answer'] or '-')}"]
        for each in found["results"]:
            verdict = {True: "right", False: "wrong", None: "no verdict"}[each["right"]]
            about = f"{verdict}, reward {_short(each['reward'])}, {_samples(each['samples'])} samples right"
            lines += ["", f"after step {each['step']}: {about}", *_indented(each["reply"])]
        return "\n".join(lines)
    counts = ", ".join(f"{count} {change}" for change, count in found["counts"].items())
    rows = [("problem", "change", "samples", "prompt", "")]
    for each in found["problems"]:
        if " to " in each["change"]:
            samples = " → ".join(map(_samples, each["samples"]))
            rows.append((str(each["problem"]), each["change"], samples, _one_line(each["prompt"]), each["link"]))
    return "\n".join([f"{steps}: {counts}   {found['link']}", *(table(rows) if len(rows) > 1 else ())])


def _samples(pair: Sequence[int] | None) -> str:
    return "-" if pair is None else f"{pair[0]}/{pair[1]}"


def show_text(found: Mapping[str, Any]) -> str:
    """Return what `look_at` or `look_at_flips` returns as lines for a terminal."""
    if "counts" in found:
        return _flips_text(found)
    if "rows" in found:
        names = ("group", "prompt_id", "mean", "spread", "right", "truncated", "invalid", "length", "largest")
        rows = [(*(_short(row[name]) for name in names), _one_line(row["prompt"])) for row in found["rows"]]
        lines = [f"step {found['step']}   {found['link']}", *table([(*names, "prompt"), *rows])]
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
    return "\n".join([*lines, "", "the probabilities that this step changed most", *table(changed)])


def _completion_lines(item: Mapping[str, Any]) -> list[str]:
    ended = ENDINGS.get(item.get("ended", ""), item.get("ended", ""))
    values = f"reward {_short(item.get('reward'))}   advantage {_short(item.get('advantage'))}"
    parts = ", ".join(f"{name} {_short(value)}" for name, value in item.get("parts", {}).items())
    lines = [f"completion {item['completion']}   {values}   {item['tokens']} tokens, {visible(ended)}"]
    lines += [f"parts: {visible(parts)}"] if parts else []
    lines += [f"fault: {visible(' '.join(item['fault'].split()))}"] if item.get("fault") else []
    return [*lines, *_indented(text_of(item))]


def _short(value: Any) -> str:
    return "-" if value is None else short(value) if isinstance(value, float) else visible(str(value))


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))[:60]


def _indented(text: str) -> list[str]:
    return [f"  {visible(line)}" for line in text.splitlines()]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
