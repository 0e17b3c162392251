"""Countdown: with each of the given numbers once, and + - *, make the target. Generator and verifier."""

import random
import re
from math import prod
from typing import Any


class Countdown:
    """Problems like "3 5 7 = 26": a right expression, such as 3*7+5, is worth 1, and everything else 0."""

    def __init__(self, count: int = 3, largest: int = 9) -> None:
        self.count, self.largest = count, largest

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Return what the policy reads: the numbers in any order, and a target from 0 to 99."""
        draw, self.target = random.Random(seed), -1
        while not 0 <= self.target <= 99:
            self.numbers = [draw.randint(1, self.largest) for _ in range(self.count)]
            self.solution = "".join(f"{draw.choice('+-*')}{number}" for number in self.numbers)[1:]
            self.target = value(self.solution)
        draw.shuffle(self.numbers)
        return f"{' '.join(map(str, self.numbers))} = {self.target}\n", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return the reward; the game is over."""
        return "", self.right(action.strip()), True, False, {}

    def right(self, expression: str) -> float:
        """Return 1 for an expression of these numbers that makes the target."""
        if not re.fullmatch(r"\d{1,3}([+*-]\d{1,3}){0,9}", expression):
            return 0.0
        used = sorted(map(int, re.findall(r"\d+", expression)))
        return float(used == sorted(self.numbers) and value(expression) == self.target)


def value(expression: str) -> int:
    """Work out whole numbers with + - *."""
    terms = re.findall(r"([+-]?)([\d*]+)", expression)
    return sum((-1 if sign == "-" else 1) * prod(map(int, term.split("*"))) for sign, term in terms)
