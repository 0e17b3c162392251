"""The texts of TextArena's Mastermind, which are long, as a model of 361,088 parameters reads and writes them."""

import re


def shown(text: str) -> str:
    """Return the digits at the start, the pegs after a guess (- for none), or that the guess did not count."""
    if "find the code" in text:
        return "1-6: "
    pegs = re.search(r"(\d+) black peg\(s\), (\d+) white", text)
    return ("b" * int(pegs[1]) + "w" * int(pegs[2]) or "-") + " " if pegs else "! "


def written(text: str) -> str:
    """Return the guess between brackets, as the game wants it."""
    return f"[{' '.join(text)}]"
