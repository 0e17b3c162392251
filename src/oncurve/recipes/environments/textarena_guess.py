"""What a model of 361,088 parameters reads and writes of TextArena's GuessTheNumber, whose texts are long for it."""

import re
from collections.abc import Mapping
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


def wasted(episode: Mapping[str, Any]) -> float:
    """Return the share of ten guesses that the hints had ruled out, or that did not count."""
    possible, count = range(1, 21), 0
    for turn, hint in zip(episode["turns"], [*episode["turns"][1:], {"text": ""}], strict=True):
        if turn["role"] == "assistant":
            guess = int(turn["text"]) if re.fullmatch("[0-9]{1,2}", turn["text"]) else 0
            count += guess not in possible
            if guess in possible and hint["text"] == "> ":
                possible = range(guess + 1, possible.stop)
            elif guess in possible and hint["text"] == "< ":
                possible = range(possible.start, guess)
    return count / 10
