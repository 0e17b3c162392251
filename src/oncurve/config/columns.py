"""Whether the data has what the rewards need: looked at row by row, before a model is loaded."""

from __future__ import annotations

from oncurve.data import DataSettings, Rows, prompt_columns
from oncurve.rewards import RewardSet


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
