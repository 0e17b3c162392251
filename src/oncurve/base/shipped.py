"""The presets and recipes that are part of the package, by name."""

from __future__ import annotations

from pathlib import Path

PRESETS = Path(__file__).parents[1] / "presets"
RECIPES = Path(__file__).parents[1] / "recipes"
SUFFIXES = (".toml", ".yaml", ".yml")


def shipped(folder: Path) -> dict[str, Path]:
    """Return the recipes in `PRESETS` or `RECIPES` by name, which is the path in the folder without the suffix."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES)
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
