"""A tool of your own: the policy may have a sum worked out, instead of working it out itself."""

import re
from collections.abc import Mapping
from math import prod
from typing import Any


def calculate(expression: str) -> str:
    """Work out whole numbers with + - *.

    Args:
        expression: The sum, like 7*8+31-19.
    """
    if not re.fullmatch(r"\d{1,6}([*+-]\d{1,6}){1,9}", expression):
        raise ValueError("write whole numbers with + - *")
    terms = re.findall(r"([+-]?)([\d*]+)", expression)
    return f"{sum((-1 if sign == '-' else 1) * prod(map(int, term.split('*'))) for sign, term in terms)}\n"


def called(episode: Mapping[str, Any]) -> float:
    """Return 1 for an episode with a call."""
    return float(any(turn["role"] == "tool" for turn in episode["turns"]))
