"""The built-in task: word problems with several numbers, solved in writing, with a checkable answer.

    Mia has 7 bags of 8 beads. She finds 31, sells 19 and wins 25. How many beads now?

    7*8=56
    56+31=87
    87-19=68
    68+25=93
    #### 93

Working is lines of `left=value`: each takes the running total and applies the next one or more changes. The more
operations go into one line, the harder it is to get right.

Problems are a pure function of (split, seed, index), and a hash of its numbers decides the split of a problem: a
held-out problem occurs in no training set, for any seed, names, or order of the numbers.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from oncurve.base.errors import ConfigError

Split = Literal["train", "test"]

TEST_SHARE = 16  # one problem in so many is held out
LARGEST_TOTAL = 99  # running totals stay within 1 .. this
CHANGES = (2, 3, 4)  # how many numbers follow "bags of"
CHANGE_SIZES = range(4, 50)

PEOPLE = {"Mia": "She", "Ava": "She", "Zoe": "She", "Leo": "He", "Sam": "He", "Tom": "He"}
THINGS = ("beads", "cards", "coins", "nuts", "shells", "stamps")
GAINS = ("buys", "finds", "gets", "wins")
LOSSES = ("drops", "loses", "sells", "uses")

_START = re.compile(r"(\d+) bags of (\d+)")
_CHANGE = re.compile(rf"({'|'.join(GAINS + LOSSES)}) (\d+)")
_ANSWER = re.compile(r"####[ \t]*(-?\d+)")
_LINE = re.compile(r"(\d+(?:[*+-]\d+)+)=(\d+)")


@dataclass(frozen=True)
class Problem:
    """One word problem: `bags * each`, then `changes` (negative: a loss) one after another.

    Example: `Problem(7, 8, (31, -19, 25), "Mia has 7 bags of 8 beads. ...")` has
    `terms == ("7", "*8", "+31", "-19", "+25")`, `totals == (56, 87, 68, 93)` and `answer == "93"`.
    """

    bags: int
    each: int
    changes: tuple[int, ...]
    question: str

    @property
    def prompt(self) -> str:
        """The question and the end of its line."""
        return self.question + "\n"

    @property
    def terms(self) -> tuple[str, ...]:
        """The first number, then one operation per term, as in the working."""
        return (str(self.bags), f"*{self.each}", *(f"{change:+d}" for change in self.changes))

    @property
    def totals(self) -> tuple[int, ...]:
        """The running total after each operation; the last is the answer."""
        return tuple(accumulate(self.changes, initial=self.bags * self.each))

    @property
    def answer(self) -> str:
        """The right answer, in digits."""
        return str(self.totals[-1])


def split_of(bags: int, each: int, changes: tuple[int, ...]) -> Split:
    """Return the split of these numbers: "test" for one problem in `TEST_SHARE`, decided by a hash.

    The order of the numbers, names and things do not count, so a held-out problem does not occur in training with two
    of its numbers swapped.
    """
    key = f"{sorted((bags, each))}{sorted(changes)}"
    return "test" if hashlib.blake2b(key.encode(), digest_size=8).digest()[0] % TEST_SHARE == 0 else "train"


def problem(split: Split, index: int, seed: int = 0) -> Problem:
    """Return problem number `index` (from 0) of `split` and `seed`, which have endlessly many: always the same one."""
    if split not in get_args(Split):
        raise ConfigError(f'split is "train" or "test", not {split!r}')
    draw = random.Random(f"{split}/{seed}/{index}")
    while True:
        bags, each = draw.randint(2, 9), draw.randint(2, 9)
        changes = tuple(draw.choice((-1, 1)) * draw.choice(CHANGE_SIZES) for _ in range(draw.choice(CHANGES)))
        totals = accumulate(changes, initial=bags * each)
        if all(1 <= total <= LARGEST_TOTAL for total in totals) and split_of(bags, each, changes) == split:
            return Problem(bags, each, changes, _story(draw, bags, each, changes))


def problems(split: Split, count: int, seed: int = 0, start: int = 0) -> list[Problem]:
    """Return `count` problems of `split` and `seed`, from number `start` on. The held-out set is `problems("test",
    count)`.
    """
    return [problem(split, index, seed) for index in range(start, start + count)]


def row(split: Split, index: int, seed: int = 0) -> dict[str, str]:
    """Return a problem as a data row: the model gets `prompt`, the reward `question` and `answer`.

    `seed` is that of the training problems; the held-out ones do not depend on it.
    """
    item = problem(split, index, seed if split == "train" else 0)
    return {"prompt": item.prompt, "question": item.question, "answer": item.answer}


def _story(draw: random.Random, bags: int, each: int, changes: tuple[int, ...]) -> str:
    name, thing = draw.choice(tuple(PEOPLE)), draw.choice(THINGS)
    events = [f"{draw.choice(GAINS if change > 0 else LOSSES)} {abs(change)}" for change in changes]
    told = ", ".join(events[:-1]) + " and " + events[-1]
    return f"{name} has {bags} bags of {each} {thing}. {PEOPLE[name]} {told}. How many {thing} now?"


def read_question(question: str) -> Problem:
    """Return the problem of a question, parsed from its text.

    Raises ValueError where the text is not one of this task's questions.
    """
    start = _START.search(question)
    if start is None:
        raise ValueError(f"not a question of the arithmetic task: {question!r}")
    changes = tuple(int(n) if verb in GAINS else -int(n) for verb, n in _CHANGE.findall(question, start.end()))
    return Problem(int(start[1]), int(start[2]), changes, question.removesuffix("\n"))


def answer_of(text: str) -> str | None:
    """Return the number after the last `####`, in plain digits (`"007"` is `"7"`); None: there is none, or it is
    endless.
    """
    found = _ANSWER.findall(text)
    try:
        return str(int(found[-1])) if found else None
    except ValueError:  # Python converts at most 4,300 digits, and a policy may write more
        return None


def is_correct(text: str, answer: Problem | str) -> bool:
    """Return whether `text` ends in the right answer. `answer` is the problem, or its answer in digits."""
    return answer_of(text) == (answer.answer if isinstance(answer, Problem) else answer)


def check_steps(text: str, question: str) -> list[tuple[int, bool]]:
    """Return the steps of a completion: for each, the offset in `text` just after it and whether it is right.

    A step is a line that is not blank, its end of line included. A line of working is right when its left side is
    the running total followed by the next operations of the question, and its value is true; the answer line is
    right when it is the right answer. After the first wrong step all steps are wrong, because the right answer no
    longer follows from them.

    Example: for 7 bags of 8 and +31, `"7*8=56\\n56+31=97\\n#### 97"` gives `[(7, True), (16, False), (23, False)]`.
    """
    asked = read_question(question)
    terms, totals = asked.terms, asked.totals
    steps: list[tuple[int, bool]] = []
    done, total, sound = 0, terms[0], True  # operations done, what the next line starts from, no wrong step yet
    for end, line in _lines(text):
        if "####" in line:
            sound = sound and _ANSWER.fullmatch(line) is not None and answer_of(line) == asked.answer
        else:
            matched = _LINE.fullmatch(line)
            ahead = [total + "".join(terms[1 + done : 1 + upto]) for upto in range(done + 1, len(terms))]
            sound = sound and matched is not None and matched[1] in ahead
            if sound and matched is not None:
                done += 1 + ahead.index(matched[1])
                sound, total = matched[2] == str(totals[done - 1]), matched[2]
        steps.append((end, sound))
    return steps


def _lines(text: str) -> Iterator[tuple[int, str]]:
    end = 0
    for line in text.splitlines(keepends=True):
        end += len(line)
        if line.strip():
            yield end, line.strip()
