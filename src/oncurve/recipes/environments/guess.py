"""A game of your own, with the protocol of Gymnasium: the policy finds a number by higher and lower."""

import random
import re
from collections.abc import Mapping
from typing import Any


class Guess:
    """A number from 1 to `largest`. Finding it is worth 1, any other guess half the share of numbers it rules out."""

    def __init__(self, largest: int = 9, guesses: int = 3) -> None:
        self.largest, self.guesses = largest, guesses

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Return what the policy reads at the start."""
        self.number, self.left = random.Random(seed).randint(1, self.largest), self.guesses
        self.possible = range(1, self.largest + 1)
        return f"1-{self.largest}: ", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return the hint, the reward, and whether the game is over."""
        found = re.search(r"\d+", action)
        guess, self.left = int(found[0]) if found else 0, self.left - 1
        if guess == self.number:
            return "", 1.0, True, False, {}
        before, higher = len(self.possible), guess < self.number
        if guess in self.possible:
            self.possible = range(guess + 1, self.possible.stop) if higher else range(self.possible.start, guess)
        return "> " if higher else "< ", 0.5 - 0.5 * len(self.possible) / before, self.left == 0, False, {}


def found(episode: Mapping[str, Any]) -> float:
    """Return 1 for a number that is found."""
    return float(any(turn["reward"] == 1.0 for turn in episode["turns"]))
