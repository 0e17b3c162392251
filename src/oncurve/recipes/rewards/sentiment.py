"""A verifier of your own: does a story have more glad words than sad ones?"""

import re

GLAD = re.compile(
    r"\b(happy|glad|smiled?|laugh(ed)?|fun|loved?|friends?|hug(ged)?|good|nice|kind|best|play(ed)?|proud|joy|excited"
    r"|thanked|safe|pretty|beautiful|great|cheerful)\b"
)
SAD = re.compile(
    r"\b(sad|cr(y|ied|ying)|hurt|angry|scared|afraid|bad|mean|lost|broken?|fell|sick|alone|worried|ugly|mad|sorry"
    r"|scary|pain|upset|tears)\b"
)


def glad(completion: str) -> float:
    """1 if glad words outnumber sad ones, 0 if sad ones outnumber glad ones, 0.5 if neither."""
    text = completion.lower()
    balance = len(GLAD.findall(text)) - len(SAD.findall(text))
    return 0.5 if balance == 0 else float(balance > 0)
