"""A game of your own, with the protocol of Gymnasium: the policy finds a number by higher and lower."""

import random
import re


class Guess:
    """A number from 1 to `largest`; the reward is 1 for finding it within `guesses`, else 0."""

    def __init__(self, largest: int = 15, guesses: int = 4) -> None:
        self.largest, self.guesses = largest, guesses

    def reset(self, seed: int | None = None):
        self.number, self.left = random.Random(seed).randint(1, self.largest), self.guesses
        return f"1-{self.largest}: ", {}

    def step(self, action: str):
        found = re.search(r"\d+", action)
        guess, self.left = int(found[0]) if found else 0, self.left - 1
        over = not found or self.left == 0 or guess == self.number
        hint = " higher\n" if guess < self.number else " lower\n"
        return hint, float(guess == self.number), over, False, {}
