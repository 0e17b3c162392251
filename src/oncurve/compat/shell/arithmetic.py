"""The value of `$((...))`: whole numbers of 64 bits with C's operators, without powers, bits and assignments."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|[0-9]+|&&|\|\||[<>=!]=|[-+*/%()<>!?:])\s*")
LONGEST = 1000
"""Characters of an expression: more are a program's, and would be nested too deeply."""


def _quotient(left: int, right: int) -> int:
    """Rounded towards zero, as in C."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda left, right: bool(left) or bool(right)},
    {"&&": lambda left, right: bool(left) and bool(right)},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda left, right: left - right * _quotient(left, right)},
)
"""The operators from the loosest to the tightest."""


def calculated(text: str) -> int:
    """The value of an expression of numbers; an empty one is 0. Raises ValueError: it is none, or too large."""
    tokens, at = list[str](), 0
    while at < len(text.rstrip()):
        found = TOKEN.match(text, at)
        if found is None or len(text) > LONGEST:
            raise ValueError(text[:LONGEST])
        tokens.append(found[1])
        at = found.end()
    if not tokens:
        return 0
    reader = _Reader(tokens)
    value = reader.choice()
    if reader.tokens:
        raise ValueError(text)
    return value


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def takes(self, token: str) -> bool:
        """Whether the next token is this one, which is then read."""
        if self.tokens[:1] != [token]:
            return False
        self.tokens.pop(0)
        return True

    def choice(self) -> int:
        """`a ? b : c`."""
        condition = self.level(0)
        if not self.takes("?"):
            return condition
        first = self.choice()
        if not self.takes(":"):
            raise ValueError(":")
        second = self.choice()
        return first if condition else second

    def level(self, number: int) -> int:
        """Operators of the level `number`, the loosest first. Raises ValueError: no such sum, or beyond 64 bits."""
        if number == len(LEVELS):
            return self.operand()
        value = self.level(number + 1)
        while self.tokens and self.tokens[0] in LEVELS[number]:
            token = self.tokens.pop(0)
            try:
                value = int(LEVELS[number][token](value, self.level(number + 1)))
            except ZeroDivisionError:
                raise ValueError(token) from None
            if abs(value) >= 2**63:
                raise ValueError(token)
        return value

    def operand(self) -> int:
        """A number, a sign or a sum in brackets. Raises ValueError: there is none."""
        if not self.tokens:
            raise ValueError("end")
        token = self.tokens.pop(0)
        if token in ("-", "+", "!"):
            value = self.operand()
            return int(not value) if token == "!" else -value if token == "-" else value
        if token == "(":
            value = self.choice()
            if not self.takes(")"):
                raise ValueError(")")
            return value
        base = 16 if token[:2] in ("0x", "0X") else 8 if token[0] == "0" else 10
        if len(token) > 20 or int(token, base) >= 2**63:
            raise ValueError(token)
        return int(token, base)
