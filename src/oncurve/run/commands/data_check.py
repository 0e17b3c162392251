"""`oncurve data check`: what a run would train on, looked at before it: rows, columns, prompts and their lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from oncurve.base.errors import DataError, noted
from oncurve.base.output import visible
from oncurve.config import DATA_NOTES, RunConfig, RunFacts, notes_on, trials_on, try_rewards
from oncurve.data import (
    Prompts,
    Rows,
    distinct_prompts,
    load_eval_rows,
    load_rows,
    open_prompts,
    prompt_columns,
)
from oncurve.rewards import RewardSet, Trial
from oncurve.run.building import first_episode, host_of
from oncurve.run.row_lengths import read_tokenizer

SHOWN = 3
SHOWN_CHARACTERS = 1500
GENERATED = 1000
"""Rows of a generated source that are looked at."""
TRIED = 32
"""Rows for which rewards are called with the reference answer."""
PERCENTILES = (50, 90, 99)
NO_MODEL = "model.path is not set, so prompts are not tokenised: add model.path=FOLDER_OR_ID"


@dataclass(frozen=True)
class Column:
    """A column of the rows: its name, the types of its values, in how many rows it is, and the first value."""

    name: str
    types: tuple[str, ...]
    rows: int
    example: str


@dataclass(frozen=True)
class Needs:
    """The columns that one reward needs, others that it takes, and what is wrong with rows.

    `tried`: how many rows it was called for; it gave a number in `read` of them, and `mean` to the reference answers.
    """

    name: str
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    lacking: int
    first: str | None
    tried: int = 0
    read: int = 0
    mean: float | None = None


@dataclass(frozen=True)
class PromptLengths:
    """The prompts' numbers of tokens, and how many of them are too long for the run."""

    count: int
    percentiles: Mapping[str, int]
    too_long: int


@dataclass(frozen=True)
class DataCheck:
    """The findings of `oncurve data check`. `problems`: why a run would refuse the data, a line each; none: it would
    not.

    rows, held_out   numbers of rows
    looked_at        training rows that were looked at: fewer where they are generated
    prompts          (place, number of tokens, text with special tokens) of a few rows
    limit            the most tokens of a prompt; None: not known, or any
    episode          (role, text) of a short episode for the first row, with a made-up turn; none without [environment]
    lengths          by "training" and "held out"; none without a tokenizer
    """

    rows: int
    held_out: int
    looked_at: int
    columns: tuple[Column, ...]
    rewards: tuple[Needs, ...]
    prompts: tuple[tuple[str, int | None, str], ...]
    limit: int | None
    overlong: str
    lengths: Mapping[str, PromptLengths] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    episode: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Return the findings as lines to read."""
        lines = [f"{self.rows:,} rows to train on, {self.held_out:,} held out", "", "Columns"]
        wide = max((len(column.name) for column in self.columns), default=0)
        for column in self.columns:
            everywhere = "" if column.rows == self.looked_at else f" (in {column.rows:,} of {self.looked_at:,} rows)"
            lines.append(f"  {column.name:<{wide}}  {' or '.join(column.types)}{everywhere}: {column.example}")
        lines += ["", "Rewards", *(f"  {line}" for line in map(_of_reward, self.rewards))]
        lines += [] if self.rewards else ["  none in the recipe"]
        for number, (place, tokens, text) in enumerate(self.prompts, start=1):
            counted = "" if tokens is None else f", {tokens:,} tokens"
            lines += ["", f"Prompt {number} of {len(self.prompts)}: {place}{counted}"]
            lines += [f"  | {line}" for line in text.split("\n")]
        lines += ["", "An episode with a made-up turn"] if self.episode else []
        lines += [f"  {role:<11}  {line}" for role, text in self.episode for line in _cut(text).split("\n")]
        lines += ["", "Tokens per prompt" + ("" if self.limit is None else f", of which at most {self.limit:,} fit")]
        lines += [f"  {name:<9}{_of_lengths(found, self.overlong)}" for name, found in self.lengths.items()]
        lines += [f"  {note}" for note in self.notes]
        would = "A run would take this." if not self.warnings else "A run would begin, but look at this first:"
        lines += ["", "A run would refuse this:" if self.problems else would]
        return visible("\n".join([*lines, *(f"  {line}" for line in self.problems or self.warnings)]))

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        prompts = [{"place": place, "tokens": tokens, "text": text} for place, tokens, text in self.prompts]
        return asdict(self) | {"prompts": prompts}


def _of_reward(reward: Needs) -> str:
    takes = f"; takes {', '.join(reward.takes)} where there" if reward.takes else ""
    needs = f"needs {', '.join(reward.needs)}" if reward.needs else "needs no column"
    found = f"; {reward.lacking:,} rows lack it" if reward.lacking else "; there in every row" if reward.needs else ""
    if reward.tried:
        found += f"; reads {reward.read:,} of the first {reward.tried:,} rows"
    if reward.mean is not None:
        found += f", whose reference answers score {reward.mean:.4g} on average"
    return f"{reward.name}: {needs}{takes}{found}"


def _of_lengths(found: PromptLengths, overlong: str) -> str:
    shown = "  ".join(f"{name} {tokens:,}" for name, tokens in found.percentiles.items())
    does = {"error": "refused", "drop": "left out", "truncate_left": "cut on the left"}[overlong]
    return shown + (f"; {found.too_long:,} of {found.count:,} too long: {does}" if found.too_long else "")


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
        distinct=distinct_prompts(rows, config.data),
        eval_distinct=distinct_prompts(held_out.first(config.eval.limit), config.data),
    )
    warnings += notes_on(config, facts, DATA_NOTES)
    tokenizer, room = read_tokenizer(config) if config.model.path else (None, None)
    episode = _episode(config, base, rows, problems, tokenizer, room)
    notes = () if config.model.path else (NO_MODEL,)
    some = rows.first(GENERATED) if rows.generated else rows
    prompts = {"training": some, "held out": held_out.first(GENERATED) if held_out.generated else held_out}
    limit = min(filter(None, (room, config.data.max_prompt_tokens)), default=None)
    lengths = dict[str, PromptLengths]()
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
) -> tuple[Needs, ...]:
    """Return what each reward takes of the rows and gives for them; what is wrong goes to `problems` and `warnings`."""
    if not config.rewards:
        return ()
    found = []
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
            found.append(Needs(component.name, needs, takes, lacking, first))
        with noted(problems):
            warnings += try_rewards(rewards, config.data, rows) if not problems else []
        if problems:
            return tuple(found)
        trials = [trials_on(rewards, config.data, rows, index) for index in range(min(TRIED, len(rows)))]
    return tuple(_with_trials(needs, [of[needs.name] for of in trials if needs.name in of]) for needs in found)


def _with_trials(needs: Needs, trials: Sequence[Trial]) -> Needs:
    given = [trial.reference for trial in trials if trial.reference is not None]
    read = sum(trial.reference is not None or trial.made_up is not None for trial in trials)
    return replace(needs, tried=len(trials), read=read, mean=math.fsum(given) / len(given) if given else None)


def _lengths(prompts: Prompts, limit: int | None) -> PromptLengths:
    try:
        ranked = sorted(len(prompts[index].ids) for index in range(len(prompts)))
    except DataError:  # a row makes no prompt, which is a problem already
        return PromptLengths(0, {}, 0)
    at = {f"p{percent}": ranked[math.ceil(percent / 100 * len(ranked)) - 1] for percent in PERCENTILES}
    too_long = sum(length > limit for length in ranked) if limit is not None else 0
    return PromptLengths(len(ranked), {"min": ranked[0], **at, "max": ranked[-1]}, too_long)


def _shown(prompts: Prompts | None, rows: Rows, config: RunConfig) -> Iterable[tuple[str, int | None, str]]:
    """Place, tokens and text of the first, the middle and the last prompt, as the model reads them."""
    own = rows if prompts is None else prompts.rows
    for index in sorted({0, len(own) // 2, len(own) - 1})[:SHOWN]:
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


def _columns(rows: Rows) -> tuple[Column, ...]:
    """Return the columns of the rows, in the order in which they occur first."""
    counts: Counter[str] = Counter()
    types: dict[str, dict[str, None]] = {}
    first: dict[str, Any] = {}
    for row in rows.items:
        for name, value in row.items():
            counts[name] += 1
            types.setdefault(name, {})[_type(value)] = None
            first.setdefault(name, value)
    return tuple(Column(name, tuple(types[name]), counts[name], _example(first[name])) for name in counts)


def _type(value: Any) -> str:
    if isinstance(value, list | tuple):
        messages = len(value) > 0 and all(isinstance(item, Mapping) and "role" in item for item in value)
        return "messages" if messages else "list"
    names = {str: "text", bool: "true or false", int: "number", float: "number", type(None): "null"}
    return "table" if isinstance(value, Mapping) else names.get(type(value), type(value).__name__)


def _example(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
