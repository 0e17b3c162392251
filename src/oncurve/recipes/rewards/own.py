"""A reward of your own: a number for a completion. The parameters are columns of the data, by name."""


def reward(completion: str, answer: str) -> float:
    """1 where the text after the last #### is the answer, else 0.

    The answer may be alone ("72") or the end of a worked solution ("... #### 72"), as in GSM8K.
    """
    return float(after_hashes(completion) == after_hashes(str(answer)))


def after_hashes(text: str) -> str:
    """The text after the last ####, or all of it, without the signs that stand around or in a number."""
    return text.rpartition("####")[2].strip().strip("$.*").replace(",", "")
