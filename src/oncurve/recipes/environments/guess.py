"""A game of your own, with the protocol of Gymnasium: the policy finds a number by higher and lower."""

import random
import re
from typing import Any


class Guess:
    """A number from 1 to `largest`. Finding it within `guesses` is worth 1, a guess that the hints rule out -0.5."""

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
        reward = 1.0 if guess == self.number else 0.0 if guess in self.possible else -0.5
        higher = guess < self.number
        if guess in self.possible:
            self.possible = range(guess + 1, self.possible.stop) if higher else range(self.possible.start, guess)
        return "> " if higher else "< ", reward, guess == self.number or self.left == 0, False, {}
