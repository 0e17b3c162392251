"""Finding the first wrong step of a completion: what a process reward model is for, and how well it does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from oncurve.evaluate.intervals import Interval, paired_difference, wilson
from oncurve.types import LabelledSteps


def first_wrong(labels: Sequence[float | None]) -> int | None:
    """Return the index of the first step whose label is below one half; None: there is none."""
    return next((index for index, label in enumerate(labels) if label is not None and label < 0.5), None)


def find_first_wrong(right: Sequence[float]) -> int | None:
    """Return the likeliest first wrong step, given how likely each is right; None: likeliest is that all are.

        P(first wrong = j) = (1 - p_j) Π_{i<j} p_i,      P(none) = Π_i p_i

    The earlier of two that are equally likely. Example: `[0.9, 0.4, 0.2]` gives 1 (0.54, against 0.1, 0.29 and 0.07).
    """
    best, found, before = -1.0, None, 1.0
    for index, p in enumerate(right):
        if before * (1.0 - p) > best:
            best, found = before * (1.0 - p), index
        before *= p
    return None if before > best else found


@dataclass(frozen=True)
class FirstWrong:
    """The counts of first wrong steps found, by the model and by the most frequent position in the training data.

    found, majority   shares of `count` completions, with 95 % intervals
    gain              how much larger `found` is, with the interval of a paired comparison
    """

    count: int
    found: Interval
    majority: Interval
    gain: Interval

    def text(self) -> str:
        """In one line."""
        low, high = 100 * self.gain.low, 100 * self.gain.high
        return (
            f"first wrong step found in {100 * self.found.value:.1f} % of {self.count} held-out completions; "
            f"the most frequent position is right in {100 * self.majority.value:.1f} % "
            f"({100 * self.gain.value:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f})"
        )


def score_first_wrong(
    trained: Sequence[LabelledSteps], held_out: Sequence[LabelledSteps], right: Sequence[Sequence[float]]
) -> FirstWrong:
    """Return a process model's answers on held-out completions, compared with the most frequent one in its training
    data.

    `right[i]` are the likelihoods that the steps of `held_out[i]` are right, for all of its steps. Raises ValueError:
    no completions to score.
    """
    if not held_out or not trained:
        raise ValueError("there are no completions to score")
    usual = Counter(first_wrong(example.labels) for example in trained).most_common(1)[0][0]
    truth = [first_wrong(example.labels) for example in held_out]
    said = [find_first_wrong(steps) for steps in right]
    hits = [a == b for a, b in zip(said, truth, strict=True)]
    usual_hits = [usual == b for b in truth]
    return FirstWrong(
        len(truth),
        wilson(sum(hits), len(hits)),
        wilson(sum(usual_hits), len(hits)),
        paired_difference(usual_hits, hits),
    )
