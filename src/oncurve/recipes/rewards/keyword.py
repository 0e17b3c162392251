"""A reward of your own: columns of the row are passed by name, the return value is the reward."""

import re


def occurs(completion: str, keyword: str) -> float:
    """1 if the keyword occurs in the completion as a whole word, else 0."""
    return float(re.search(rf"\b{re.escape(keyword)}\b", completion, re.IGNORECASE) is not None)
