"""A reward of your own: a number for a completion. The parameters are columns of the data, by name."""


def reward(completion: str, answer: str) -> float:
    """1 where the text after the last #### is the answer, else 0."""
    return float(completion.rpartition("####")[2].strip() == str(answer).strip())
