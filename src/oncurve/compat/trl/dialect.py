"""TRL's table: the fields of `GRPOConfig`, also of older versions, and the arguments of `GRPOTrainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oncurve.compat.dialect import Dialect, Values
from oncurve.compat.tables import keys_of
from oncurve.compat.trl import loss_keys, run_keys


class Told(str):
    """An argument of the trainer as comments show it, with the settings that it is."""

    settings: dict[str, Any]

    def __new__(cls, text: str, settings: dict[str, Any]) -> Told:
        """Return the text with its settings."""
        told = super().__new__(cls, text)
        told.settings = settings
        return told


def as_given(value: Told, values: Values) -> dict[str, Any]:
    """Return the settings that the trainer has found in an argument."""
    return value.settings


HERE = Path(__file__).parent
FUNCTIONS = {**vars(run_keys), **vars(loss_keys), "as_given": as_given}

CONFIG_KEYS = keys_of(HERE / "config.toml", FUNCTIONS)
"""The fields of `GRPOConfig`."""

OLDER_KEYS = keys_of(HERE / "older.toml", FUNCTIONS)
"""Fields that older versions had."""

TRAINER_KEYS = keys_of(HERE / "trainer.toml", FUNCTIONS)
"""The arguments of `GRPOTrainer`."""

DIALECT = Dialect("TRL", "1.16", (*CONFIG_KEYS, *OLDER_KEYS, *TRAINER_KEYS))

ABOUT = (HERE / "about.md").read_text(encoding="utf-8")
"""The text of the page for users of TRL."""
