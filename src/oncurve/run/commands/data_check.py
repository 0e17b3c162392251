"""`oncurve data check`: what a run would train on, looked at before it: rows, columns, prompts and their lengths."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from oncurve.base.errors import DataError, noted
from oncurve.config import RunConfig, RunFacts, sentences_of, trials_on, try_rewards
from oncurve.data import (
    Prompts,
    Rows,
    distinct_prompts,
    load_eval_rows,
    load_rows,
    open_prompts,
    prompt_columns,
)
from oncurve.report import rendered
from oncurve.rewards import RewardSet, Trial
from oncurve.run.building import first_episode, host_of, read_tokenizer

SHOWN_CHARACTERS = 1500
GENERATED = 1000
"""Rows of a generated source that are looked at."""
TRIED = 32
"""Rows for which rewards are called with the reference answer."""
PERCENTILES = (50, 90, 99)
NO_MODEL = "model.path is not set, so prompts are not tokenised: add model.path=FOLDER_OR_ID"


@dataclass(frozen=True)
class DataCheck:
    """The findings of `oncurve data check`. `problems`: why a run would refuse the data, a line each; none: it would
    not.

    rows, held_out   numbers of rows
    looked_at        training rows that were looked at: fewer where they are generated
    columns          `name`, `types` of its values, in how many `rows` it is, an `example`
    rewards          `name`, the columns that it `needs` and `takes` where they are there, how many rows are `lacking`
                     one, and what the `first` of them lacks; it was `tried` for so many rows, gave a number in `read`
                     of them, and their reference answers score `mean`
    prompts          (place, number of tokens, text with special tokens) of a few rows
    limit            the most tokens of a prompt; None: not known, or any
    episode          (role, text) of a short episode for the first row, with a made-up turn; none without [environment]
    lengths          of prompts, by "training" and "held out": `count`, `percentiles` of tokens, how many are `too_long`
                     for the run; none without a tokenizer
    """

    rows: int
    held_out: int
    looked_at: int
    columns: Sequence[Mapping[str, Any]]
    rewards: Sequence[Mapping[str, Any]]
    prompts: tuple[tuple[str, int | None, str], ...]
    limit: int | None
    overlong: str
    lengths: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    episode: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Return the findings as lines to read."""
        return rendered("data_check.j2", d=self, cut=_cut).rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        prompts = [{"place": place, "tokens": tokens, "text": text} for place, tokens, text in self.prompts]
        return asdict(self) | {"prompts": prompts}


def check_data_of(config: RunConfig, base: Path) -> DataCheck:
    """Look at the data of a configuration as a run would read it; no weights are loaded.

    `base` is where relative paths start. Raises UserError: a source cannot be read, a row can
    make no prompt, a reward cannot be loaded.
    """
    rows, held_out = load_rows(config.data, base), load_eval_rows(config.data, base)
    problems, warnings = list[str](), list[str]()
    rewards = _rewards(config, base, rows, held_out, problems, warnings)
    facts = RunFacts(
        rows=len(rows),
        distinct=distinct_prompts(rows, config.data, config.environment.present),
        eval_distinct=distinct_prompts(held_out.first(config.eval.limit), config.data, config.environment.present),
    )
    warnings += sentences_of("data_notes.j2", config, facts)
    tokenizer, room = read_tokenizer(config) if config.model.path else (None, None)
    episode = _episode(config, base, rows, problems, tokenizer, room)
    notes = () if config.model.path else (NO_MODEL,)
    some = rows.first(GENERATED) if rows.generated else rows
    prompts = {"training": some, "held out": held_out.first(GENERATED) if held_out.generated else held_out}
    limit = min(filter(None, (room, config.data.max_prompt_tokens)), default=None)
    lengths = dict[str, Mapping[str, Any]]()
    shown = dict[str, Prompts]()
    if tokenizer is not None:
        for name, part in prompts.items():
            shown[name] = as_they_are = Prompts(part, config.data, tokenizer)
            with noted(problems):  # what a run would refuse is shown as it is
                shown[name] = open_prompts(part, config.data, tokenizer, room)
            if len(part):
                lengths[name] = _lengths(as_they_are, limit)
    return DataCheck(
        rows=len(rows),
        held_out=len(held_out),
        looked_at=len(some),
        columns=_columns(some),
        rewards=rewards,
        prompts=tuple(_shown(shown.get("training"), some, config)),
        limit=limit,
        overlong=config.data.overlong,
        lengths=lengths,
        notes=notes,
        problems=tuple(dict.fromkeys(problems)),
        warnings=tuple(warnings),
        episode=tuple(episode),
    )


def _episode(
    config: RunConfig, base: Path, rows: Rows, problems: list[str], tokenizer: Any, room: int | None
) -> list[tuple[str, str]]:
    """Return what is said in an episode of the first row; none without an environment, or where it fails."""
    host = host_of(config, base)
    if host is None or not len(rows):
        return []
    found = list[tuple[str, str]]()
    with host, noted(problems):
        found += first_episode(config, host, rows, tokenizer, room)
    return found


def _rewards(
    config: RunConfig, base: Path, rows: Rows, held_out: Rows, problems: list[str], warnings: list[str]
) -> list[dict[str, Any]]:
    """Return what each reward takes of the rows and gives for them; what is wrong goes to `problems` and `warnings`."""
    if not config.rewards:
        return []
    found, trials = list[dict[str, Any]](), defaultdict[str, list[Trial]](list)
    with RewardSet.build(config.fitted_rewards, base=base) as rewards:
        for component in rewards.components:
            needs, takes = component.columns
            lacking, first = 0, None
            for part in (rows, held_out):
                some = part.first(1) if part.generated else part
                for index, row in enumerate(some.items):
                    wrong = component.complaint(prompt_columns(row, config.data))
                    if wrong is not None:
                        lacking += 1
                        first = first or f"{some.place(some.numbers[index])}: {wrong}"
            problems += [] if first is None else [first]
            found.append({"name": component.name, "needs": needs, "takes": takes, "lacking": lacking, "first": first})
        with noted(problems):
            warnings += try_rewards(rewards, config.data, rows) if not problems else []
        for index in range(min(TRIED, len(rows))) if not problems else ():
            for name, trial in trials_on(rewards, config.data, rows, index).items():
                trials[name].append(trial)
    for reward in found:
        tried = trials[reward["name"]]
        given = [trial.reference for trial in tried if trial.reference is not None]
        read = sum(trial.reference is not None or trial.made_up is not None for trial in tried)
        reward |= {"tried": len(tried), "read": read, "mean": math.fsum(given) / len(given) if given else None}
    return found


def _lengths(prompts: Prompts, limit: int | None) -> dict[str, Any]:
    try:
        ranked = sorted(len(prompts[index].ids) for index in range(len(prompts)))
    except DataError:  # a row makes no prompt, which is a problem already
        return {"count": 0, "percentiles": {}, "too_long": 0}
    at = {f"p{percent}": ranked[math.ceil(percent / 100 * len(ranked)) - 1] for percent in PERCENTILES}
    too_long = sum(length > limit for length in ranked) if limit is not None else 0
    percentiles = {"min": ranked[0], **at, "max": ranked[-1]}
    return {"count": len(ranked), "percentiles": percentiles, "too_long": too_long}


def _shown(prompts: Prompts | None, rows: Rows, config: RunConfig) -> Iterable[tuple[str, int | None, str]]:
    """Place, tokens and text of the first, the middle and the last prompt, as the model reads them."""
    own = rows if prompts is None else prompts.rows
    for index in sorted({0, len(own) // 2, len(own) - 1}):
        place = own.place(own.numbers[index])
        if prompts is None or prompts.tokenizer is None:
            column = own.items[index].get(config.data.prompt_column) if config.data.template is None else None
            yield place, None, _cut(str(own.items[index] if column is None else column))
            continue
        try:
            ids = prompts[index].ids
        except DataError:  # a problem already
            continue
        yield place, len(ids), _cut(prompts.tokenizer.decode(list(ids), skip_special_tokens=False))


def _cut(text: str) -> str:
    left_out = len(text) - SHOWN_CHARACTERS
    half = SHOWN_CHARACTERS // 2
    return text if left_out <= 0 else f"{text[:half]}\n... {left_out:,} characters ...\n{text[-half:]}"


def _columns(rows: Rows) -> list[dict[str, Any]]:
    """Return the columns of the rows, in the order in which they occur first."""
    values: dict[str, list[Any]] = defaultdict(list)
    for row in rows.items:
        for name, value in row.items():
            values[name].append(value)
    types = {name: list(dict.fromkeys(map(_type, found))) for name, found in values.items()}
    return [
        {"name": name, "types": types[name], "rows": len(found), "example": _example(found[0])}
        for name, found in values.items()
    ]


def _type(value: Any) -> str:
    if isinstance(value, list | tuple):
        messages = len(value) > 0 and all(isinstance(item, Mapping) and "role" in item for item in value)
        return "messages" if messages else "list"
    names = {str: "text", bool: "true or false", int: "number", float: "number", type(None): "null"}
    return "table" if isinstance(value, Mapping) else names.get(type(value), type(value).__name__)


def _example(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
