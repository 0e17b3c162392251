"""What a model of 361,088 parameters reads and writes of TextArena's GuessTheNumber, whose texts are long for it."""


def shown(text: str) -> str:
    """The range at the start, the hint after a guess, or that the guess did not count."""
    if "Enter your guess" in text:
        return "1-20: "
    return " higher\n" if "is higher" in text else " lower\n" if "is lower" in text else " no\n"


def written(text: str) -> str:
    """The guess between brackets, as the game wants it."""
    return f"[{text}]"
