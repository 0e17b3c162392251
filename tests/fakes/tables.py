"""Tables of cases that are words alone: `tests/tables/NAME.toml`, one for each module of tests that has some."""

import tomllib
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parents[1] / "tables"


def table(name: str, part: str) -> Any:
    """Return one part of a file of tables."""
    return tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8"))[part]
