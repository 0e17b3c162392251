"""A game of your own, with the protocol of Gymnasium: the policy finds a number by higher and lower."""

import random
import re
from typing import Any


class Guess:
    """A number from 1 to `largest`; the reward is 1 for finding it within `guesses`, else 0."""

    def __init__(self, largest: int = 9, guesses: int = 3) -> None:
        self.largest, self.guesses = largest, guesses

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Return what the policy reads at the start."""
        self.number, self.left = random.Random(seed).randint(1, self.largest), self.guesses
        return f"1-{self.largest}: ", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return the hint, the reward, and whether the game is over."""
        found = re.search(r"\d+", action)
        guess, self.left = int(found[0]) if found else 0, self.left - 1
        over = not found or self.left == 0 or guess == self.number
        hint = "> " if guess < self.number else "< "
        return hint, float(guess == self.number), over, False, {}
