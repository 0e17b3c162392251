"""A tool of your own: the policy may have sums worked out instead of working them out itself."""

import re


def calculate(expression: str) -> str:
    """Work out whole numbers with + - *.

    Args:
        expression: The sum, like 7*8+31-19.
    """
    if not re.fullmatch(r"\d{1,6}([*+-]\d{1,6}){1,9}", expression):
        raise ValueError("write numbers with + - *")
    total = 0
    for sign, product in re.findall(r"([+-]?)([\d*]+)", expression):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return f"={total}\n"


def called(completion: str) -> float:
    """1 for a completion with a call; of weight 0, so that it is only counted."""
    return float("<<" in completion)
