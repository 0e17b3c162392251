"""What a model of 361,088 parameters reads and writes of TextArena's GuessTheNumber, whose texts are long for it."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def shown(text: str) -> str:
    """Return the range at the start, the hint after a guess, or that the guess did not count."""
    if "Enter your guess" in text:
        return "1-20: "
    return "> " if "is higher" in text else "< " if "is lower" in text else "! "


def written(text: str) -> str:
    """Return the guess between brackets, as the game wants it."""
    return f"[{text}]"


def found(episode: Mapping[str, Any]) -> float:
    """Return 1 for a game that is won: the game itself gives a share for a guess that is close."""
    return float(episode["outcome"] == 1.0)


def narrowed(episode: Mapping[str, Any]) -> float:
    """Return the share of the numbers that the hints rule out at the end of a game, or 1 for a game that is won."""
    low, high = 1, 20
    for turn, reply in pairwise(episode["turns"]):
        if turn["role"] == "assistant" and turn["text"].isdecimal():
            guess = int(turn["text"])
            low = max(low, guess + 1) if reply["text"] == "> " else low
            high = min(high, guess - 1) if reply["text"] == "< " else high
    return 1.0 if found(episode) else (19 - high + low) / 20
