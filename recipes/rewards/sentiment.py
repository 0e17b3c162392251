"""A judge of one's own: whether a story has more glad words than sad ones."""

import re

GLAD = frozenset(
    ["happy", "glad", "smiled", "smile", "laughed", "laugh", "fun", "love", "loved", "friend", "friends", "hug", "hugged", "good", "nice", "kind", "best", "play", "played", "proud", "joy", "excited", "thanked", "safe", "pretty", "beautiful", "great", "cheerful"]
)
SAD = frozenset(
    ["sad", "cried", "cry", "crying", "hurt", "angry", "scared", "afraid", "bad", "mean", "lost", "broke", "broken", "fell", "sick", "alone", "worried", "ugly", "mad", "sorry", "scary", "pain", "upset", "tears"]
)


def glad(completion: str) -> float:
    """1 if glad words outnumber sad ones, 0 if it is the other way round, a half where they are level."""
    words = re.findall(r"[a-z]+", completion.lower())
    balance = sum(word in GLAD for word in words) - sum(word in SAD for word in words)
    return 0.5 if balance == 0 else float(balance > 0)
