"""rlox 1.2's names that oncurve does not have, with the reason and what to do."""

import tomllib
from pathlib import Path

_ROWS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["elsewhere"]
REASONS: dict[str, str] = {name: row["reason"] for row in _ROWS for name in row["names"].split()}
"""By name."""
