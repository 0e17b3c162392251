"""A reward of one's own: columns of the row arrive by name, the return value is the reward."""

import re


def occurs(completion: str, keyword: str) -> float:
    """1 if the keyword stands in the completion as a word of its own, else 0."""
    return float(re.search(rf"\b{re.escape(keyword)}\b", completion, re.IGNORECASE) is not None)
