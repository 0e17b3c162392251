"""`oncurve reward check`: a recipe's rewards on completions, as a table, before a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, DataError, suggest
from oncurve.config import RunConfig, check_columns, check_complete, try_rewards
from oncurve.data import (
    MISSING,
    Files,
    Prompts,
    Rows,
    load_rows,
    prompt_columns,
    read_rows,
    template_columns,
    value_at,
)
from oncurve.display import one_line
from oncurve.machine.threads import prepare_process
from oncurve.models import LocalWeights
from oncurve.report import group_record, rendered
from oncurve.rewards import RewardSet
from oncurve.rollout import sample as sample_groups
from oncurve.run.building import build_engine, fix_reach, host_of, opened, read_tokenizer, with_environment
from oncurve.run.commands.evaluation import give_own_model
from oncurve.run.iterations import step_locator
from oncurve.types import Completion, Group, Prompt

WIDTH = 72
"""Characters of a completion in the table."""


SHOWN = ("reward", "parts", "fault", "text", "turns")
"""What `group_record` has of a completion that is shown."""


@dataclass(frozen=True)
class RewardCheck:
    """The completions of every prompt, `(place, prompt, completions)`, with what the rewards give them.

    source     where the completions come from, in words
    names      the rewards, in the order of the recipe
    warnings   of the trial of the rewards on the first row
    """

    source: str
    names: tuple[str, ...]
    groups: tuple[tuple[str, str, list[dict[str, Any]]], ...]
    warnings: tuple[str, ...] = ()

    @property
    def worthless(self) -> bool:
        """Return whether all completions and a reference answer have the reward 0: the rewards are wrong, not the
        model.
        """
        return bool(self.warnings) and all(one["reward"] == 0 for one in self._all())

    def text(self) -> str:
        """Return the table, and for each reward its mean and range."""
        every = self._all()
        differ = [len({one["reward"] for one in scored}) > 1 for _, _, scored in self.groups if len(scored) > 1]
        values = [(name, [one["parts"].get(name) for one in every]) for name in self.names]
        values.append(("reward", [one["reward"] for one in every]))
        summaries = [(name, *_summary(given)) for name, given in values]
        counts = {"several": len(differ), "differing": sum(differ)}
        shown = {"one_line": one_line, "both_ends": _both_ends, "width": WIDTH, "summaries": summaries}
        return rendered("reward_check.j2", r=self, every=every, **counts, **shown).rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "source": self.source,
            "rewards": list(self.names),
            "warnings": list(self.warnings),
            "groups": [
                {"place": place, "prompt": prompt, "completions": scored} for place, prompt, scored in self.groups
            ],
        }

    def _all(self) -> list[dict[str, Any]]:
        return [one for _, _, scored in self.groups for one in scored]


def _summary(values: Sequence[float | None]) -> tuple[Sequence[float | None], int]:
    """Return mean, least and largest of the numbers, and how many are none."""
    known = [value for value in values if value is not None]
    numbers = (math.fsum(known) / len(known), min(known), max(known)) if known else (None,) * 3
    return numbers, len(values) - len(known)


def _both_ends(text: str) -> str:
    """Return a completion on one line, without its middle: rewards look at its end, and the reader at its beginning."""
    line = one_line(text, len(text) * 3)
    half = WIDTH // 2 - 3
    return line if len(line) <= WIDTH else f"{line[:half].rstrip()} ... {line[-half:].lstrip()}"


def check_rewards_of(
    config: RunConfig,
    base: Path,
    sample: bool = False,
    file: Path | None = None,
    column: str = "completion",
    prompts: int = 4,
) -> RewardCheck:
    """Score completions with the rewards of a configuration. `base` is where its relative paths start.

    sample      sample them with the recipe's model, `rollout.group_size` for each prompt
    file        else: rows with completions, in place of the recipe's data
    column      else: the column with a completion, or with a list of them; `solutions.best` is a part of a table
    prompts     how many rows are taken, the first ones

    Raises UserError: no completions, or settings that are lacking. TrainingError: every completion has a fault.
    """
    if sample and file is not None:
        raise ConfigError("--sample and --completions are two sources of completions: give one of them")
    if file is not None:
        shared = {key: getattr(config.data, key) for key in SHARED}
        config = config.model_copy(update={"data": Files(path=str(file.absolute()), **shared)})
    check_complete(config)
    whole = load_rows(config.data, base) if file is None else read_rows(config.data, None)[0]
    rows = whole.first(prompts)
    given = None if sample else [_given(rows, index, column) for index in range(len(rows))]
    prepare_process(config.run.threads)
    with RewardSet.build(config.fitted_rewards, base=base) as rewards:
        check_columns(rewards, config.data, rows)
        warnings = try_rewards(rewards, config.data, rows)
        give_own_model(rewards, config, Path("reward_model"))
        if given is None:
            groups = _sampled(rows, config, rewards, base)
            source = f"sampled from {config.model.path} at temperature {config.rollout.temperature:g}"
        else:
            groups = _groups(rows, given, config, rewards)
            source = f"from the column {column!r} of " + ("the recipe's data" if file is None else str(file))
            source += f" ({prompts} of {len(whole):,} rows; --prompts takes more)" * (len(rows) < len(whole))
        scored = rewards.score(groups)
        names = tuple(component.name for component in rewards.components)
    shown = []
    for group in scored:
        items = [{key: one[key] for key in SHOWN if key in one} for one in group_record(group)["completions"]]
        shown.append((rows.place(group.prompt.id), group.prompt.text, items))
    return RewardCheck(source, names, tuple(shown), tuple(warnings))


SHARED = ("prompt_column", "columns", "template", "system", "chat", "chat_template_kwargs")
"""Settings of the recipe's data that hold for a file of completions, too."""


def _given(rows: Rows, index: int, column: str) -> list[str]:
    """Return the completions in a column of a row. Raises DataError: there is none, or it holds something else than
    texts.
    """
    row, place = rows.items[index], rows.place(rows.numbers[index])
    value = value_at(row, column)
    if value is MISSING:
        raise DataError(
            f"{place}: there is no column {column!r} with a completion{suggest(column, row) or ';'} it has: "
            f"{', '.join(map(str, row))}; name one with --column, a file with --completions, or use --sample"
        )
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{place}: column {column!r} must hold a completion, or a list of them, got {value!r:.60}")
    return list(texts)


def _groups(rows: Rows, given: Sequence[Sequence[str]], config: RunConfig, rewards: RewardSet) -> list[Group]:
    """Return the given completions as if they had been sampled, with the tokens that the model's tokenizer makes of
    them.
    """
    tokenizer, _ = read_tokenizer(config)
    rewards.locate = step_locator(tokenizer)
    groups = []
    for index, texts in enumerate(given):
        completions = []
        for number, text in enumerate(texts):
            ids = tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
            completions.append(Completion(ids, text, (0.0,) * len(ids), "eos", number, 0))
        groups.append(Group(_prompt(rows, index, config, tokenizer), tuple(completions)))
    return groups


def _prompt(rows: Rows, index: int, config: RunConfig, tokenizer: Any) -> Prompt:
    """Return the prompt of a row; of a row of completions that has none, an empty one with its columns."""
    row = rows.items[index]
    names = (config.data.prompt_column,) if config.data.template is None else template_columns(config.data.template)
    if all(row.get(name) is not None for name in names):
        return Prompts(rows, config.data, tokenizer)[index]
    return Prompt(rows.numbers[index], "", (), prompt_columns({**dict.fromkeys(names), **row}, config.data))


def _sampled(rows: Rows, config: RunConfig, rewards: RewardSet, base: Path) -> list[Group]:
    """Return groups that the recipe's model writes, as a run's first step would sample them."""
    loaded = config.model.build(lora=config.lora, seed=config.run.seed)
    prompts = opened(rows, config, loaded)
    fix_reach(loaded.model, config, prompts)
    rewards.locate = step_locator(loaded.tokenizer)
    inner = build_engine(config, loaded)
    with closing(with_environment(config, inner, loaded, rewards, host_of(config, base))) as engine:
        engine.follow(LocalWeights(loaded.model, 0))
        asked, sampling = [prompts[index] for index in range(len(prompts))], config.rollout
        return sample_groups(engine, asked, 0, sampling.group_size, sampling)
