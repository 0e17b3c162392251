"""A check, row by row and before a model is loaded, that the data has what the rewards need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncurve.base.errors import ConfigError, DataError
from oncurve.data import DataSettings, Rows, filled_prompt, prompt_columns
from oncurve.rewards import RewardSet, Trial, can_be_tried, tried
from oncurve.types import Prompt

ROWS_OF_A_TRIAL = 8
"""Rows on which rewards are tried, where none applies to the first."""


def check_columns(rewards: RewardSet, settings: DataSettings, *sources: Rows) -> None:
    """Raises DataError, with its place, at the first row of `sources` that lacks what a reward needs.

    Of generated rows, which are all alike, the first is looked at.
    """
    for rows in sources:
        some = rows.first(1) if rows.generated else rows
        rewards.check_rows(
            (prompt_columns(row, settings) for row in some.items),
            lambda index, some=some: some.place(some.numbers[index]),  # type: ignore[misc]
        )


def trials_on(rewards: RewardSet, settings: DataSettings, rows: Rows, index: int) -> dict[str, Trial]:
    """Return the trials on a row, by the names of the rewards that can be tried."""
    row, number = rows.items[index], rows.numbers[index]
    prompt = _prompt(row, number, settings)
    place = rows.place(number)
    return {one.name: tried(one, prompt, place) for one in rewards.components if can_be_tried(one)}


def _prompt(row: Mapping[str, Any], number: int, settings: DataSettings) -> Prompt:
    """Return the prompt of a row as rewards see it, without the tokens, which they are not given."""
    try:
        asked = filled_prompt(row, settings)
    except (KeyError, DataError):  # a row of completions to be checked need not have a prompt
        asked = ""
    chat = isinstance(asked, list | tuple) and all(isinstance(message, Mapping) for message in asked)
    text = "\n".join(str(message.get("content", "")) for message in asked) if chat else str(asked)
    return Prompt(number, text, (), prompt_columns(row, settings), tuple(asked) if chat else None)


def try_rewards(rewards: RewardSet, settings: DataSettings, rows: Rows) -> list[str]:
    """Call each reward for the first row, with its reference answer and with a made-up text; returns warnings.

    Rewards that load a network, ask a service, need the model's tokens or run as the user's code in this process are
    not tried. Where no reward applies to the first row, the next ones are tried.

    Raises ConfigError: a reward fails for the reference answer, too, or none applies. DataError: a column cannot be
    sent to a worker.
    """
    weights = {one.name: one.settings.weight for one in rewards.components}
    all_are_tried = all(map(can_be_tried, rewards.components))
    for index in range(min(len(rows), ROWS_OF_A_TRIAL)):
        trials = trials_on(rewards, settings, rows, index)
        broken = [trial.broken for name, trial in trials.items() if trial.broken is not None and weights[name]]
        if broken:
            again = "correct the function; then `oncurve reward check` with the same words shows what it gives"
            raise ConfigError("\n".join([*broken, again]))
        applies = any((trial.reference, trial.made_up, trial.faulted) != (None,) * 3 for trial in trials.values())
        if applies or not all_are_tried:
            return [*filter(None, (trial.faulted for trial in trials.values())), *blind(rewards, trials, rows, index)]
    if rewards.components and len(rows):
        none = f"{', '.join(weights)} returned None for the reference answer and for a made-up completion"
        fix = "return a number, or name the column of the answer"
        raise ConfigError(f"no reward applies to {rows.place(rows.numbers[0])} nor to the rows after it: {none}; {fix}")
    return []


def blind(rewards: RewardSet, trials: Mapping[str, Trial], rows: Rows, index: int = 0) -> list[str]:
    """Return a warning for each reward that gives a row's reference answer no more than a made-up text."""
    return [
        f"reward {one.name} gives the reference answer of {rows.place(rows.numbers[index])} {trial.reference:g} and a "
        f"made-up text {trial.made_up:g}: does it compare with the right column, in the right form?"
        for one in rewards.components
        if one.settings.weight > 0 and not one.settings.shapes and _reads_answer(one)
        for trial in [trials.get(one.name)]
        if trial is not None and trial.blind
    ]


def _reads_answer(component: Any) -> bool:
    """Return whether a reward is given the column of the answer by name."""
    accepts, answer = component.accepts, getattr(component.settings, "answer", "answer")
    return answer in (*accepts.takes, *(name for names in accepts.needs for name in names))
