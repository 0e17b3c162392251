"""The texts of TextArena's GuessTheNumber, which are long, as a model of 361,088 parameters reads and writes them."""

from collections.abc import Mapping
from typing import Any


def shown(text: str) -> str:
    """Return the range at the start, the hint after a guess, or that the guess did not count."""
    if "Enter your guess" in text:
        return "1-20: "
    return "> " if "is higher" in text else "< " if "is lower" in text else "! "


def written(text: str) -> str:
    """Return the guess between brackets, as the game wants it."""
    return f"[{text.strip()}]"


def found(episode: Mapping[str, Any]) -> float:
    """Return 1 for a game that is won: the game itself gives a share for a guess that is close."""
    return float(episode["outcome"] == 1.0)
