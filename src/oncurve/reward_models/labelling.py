"""A verifier's scores of the policy's own samples as examples for a reward model: pairs, or labelled steps.

The verifier is one of the rewards: a checker of answers, the built-in task's step checker, or a function of yours.
Steps that no verifier scores are labelled by continuations (Math-Shepherd, Wang et al., arXiv:2312.08935): a step's
label is the share of completions from its end on that come out right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from oncurve.reward_models.examples import LabelledSteps, PreferencePair
from oncurve.rewards import Scorer
from oncurve.rollout import RolloutEngine, Sampling, sample
from oncurve.steps import Splitter
from oncurve.types import Completion, Group, Messages, Prompt

Labeller = Callable[[Sequence[Group]], list[PreferencePair] | list[LabelledSteps]]
"""Scored groups -> examples for a reward model."""

RIGHT = 1.0
"""The verifier's value for a completion that is right."""

CONTINUATION_DRAW = -2
"""Training draws count up from 0 and evaluations have -1; continuations of draw d have -2 - d."""


def scored_pairs(groups: Sequence[Group], verifier: str) -> list[PreferencePair]:
    """Return pairs of each group: the best completion with the worst, the second best with the second worst, ...

    As long as the verifier scores one above the other: at most half as many pairs as completions, each completion in at
    most one pair. Of equal scores the earlier completion is the better.
    """
    pairs = []
    for group in groups:
        known = [
            (value, completion)
            for completion, score in zip(group.completions, group.scores, strict=True)
            if (value := score.parts.get(verifier)) is not None
        ]
        known.sort(key=lambda item: (-item[0], item[1].sample_index))
        for (high, better), (low, worse) in zip(known, reversed(known), strict=True):
            if high <= low:
                break
            pairs.append(PreferencePair(_messages(group.prompt), better.text, worse.text))
    return pairs


def scored_steps(groups: Sequence[Group], verifier: str) -> list[LabelledSteps]:
    """Return every completion whose steps the verifier has scored; a reward above one half means that a step is
    right.
    """
    return [
        LabelledSteps(
            _messages(group.prompt),
            completion.text,
            tuple(end for end, _ in steps),
            tuple(min(1.0, max(0.0, reward)) for _, reward in steps),
        )
        for group in groups
        for completion, score in zip(group.completions, group.scores, strict=True)
        if (steps := score.part_steps.get(verifier))
    ]


@dataclass(frozen=True)
class MonteCarloLabels:
    """Labels steps by `count` completions from each step's end, scored by `verifier`.

    engine     follows the policy that completes them
    scorer     the run's rewards
    split      where steps end in a text
    locate     (prompt, completion, offsets) -> the tokens that end them
    sampling   as in training
    longest    the most tokens that a row of the model may have, prompt and completion together; None: any

    The last step needs no continuations: it is right where the completion is. A continuation may have as many
    tokens as a completion; of beginnings that leave less in the model, as many as the longest of those leaves.
    """

    engine: RolloutEngine
    scorer: Scorer
    verifier: str
    count: int
    split: Splitter
    locate: Callable[[Prompt, Completion, Sequence[int]], tuple[int, ...]]
    sampling: Sampling
    longest: int | None = None

    def __call__(self, groups: Sequence[Group]) -> list[LabelledSteps]:
        """Return the completions of scored groups with a share for each of their steps."""
        scored: list[tuple[Group, Completion, Sequence[int], float]] = []
        begun: list[tuple[Prompt, Group]] = []
        for group in groups:
            for completion, score in zip(group.completions, group.scores, strict=True):
                ends, own = self.split(completion.text), score.parts.get(self.verifier)
                if not ends or own is None:
                    continue
                scored.append((group, completion, ends, float(own >= RIGHT)))
                tokens = self.locate(group.prompt, completion, ends)
                written = self._written(group.prompt, completion, ends[:-1], tokens[:-1])
                for step, (end, token) in enumerate(zip(written, tokens[:-1], strict=True)):
                    begun.append((_beginning(group.prompt, completion, end, token, step), group))
        shares = iter(self._shares(begun))
        return [
            LabelledSteps(_messages(of.prompt), each.text, tuple(ends), (*islice(shares, len(ends) - 1), last))
            for of, each, ends, last in scored
        ]

    def _written(self, prompt: Prompt, completion: Completion, ends: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Return where the text of the tokens that end some steps ends: a token may write into the next step."""
        found = []
        beyond = self.locate(prompt, completion, [end + 1 for end in ends])
        for end, token, writer in zip(ends, tokens, beyond, strict=True):
            while writer == token and end < len(completion.text):
                end += 1
                (writer,) = self.locate(prompt, completion, [end + 1])
            found.append(end)
        return found

    def _shares(self, begun: Sequence[tuple[Prompt, Group]]) -> list[float | None]:
        """Return the share of continuations from each beginning of a group that come out right; None where none could
        be scored.
        """
        most = self.sampling.max_new_tokens
        left_of = [most if self.longest is None else self.longest - len(each.ids) for each, _ in begun]
        whole: dict[int, Group] = {}
        for fits in (True, False):  # those with few tokens left do not cut the others short
            chosen = [index for index, left in enumerate(left_of) if (left >= most) == fits and left > 0]
            if not chosen:
                continue
            limit = min(most, *(left_of[index] for index in chosen))
            sampling = self.sampling.model_copy(update={"group_size": self.count, "max_new_tokens": limit})
            draw = CONTINUATION_DRAW - begun[0][1].draw
            written = sample(self.engine, [begun[index][0] for index in chosen], draw, self.count, sampling)
            for index, continued in zip(chosen, written, strict=True):
                beginning, prompt = begun[index][0], begun[index][1].prompt
                whole[index] = Group(prompt, tuple(_joined(beginning, end, prompt) for end in continued.completions))
        shares: list[float | None] = [None] * len(begun)
        for index, group in zip(whole, self.scorer.score(list(whole.values())) if whole else (), strict=True):
            said = [value for score in group.scores if (value := score.parts.get(self.verifier)) is not None]
            shares[index] = sum(value >= RIGHT for value in said) / len(said) if said else None
        return shares


def _messages(prompt: Prompt) -> Messages:
    return prompt.text if prompt.messages is None else tuple(prompt.messages)


def _beginning(prompt: Prompt, completion: Completion, end: int, token: int, step: int) -> Prompt:
    """Return prompt and completion up to a step's end, as a prompt with an id of its own."""
    number = ((prompt.id << 12) + completion.sample_index << 10) + step
    return Prompt(number, prompt.text + completion.text[:end], prompt.ids + completion.ids[: token + 1])


def _joined(beginning: Prompt, rest: Completion, prompt: Prompt) -> Completion:
    """Return `beginning`, which ends with a step, and its continuation `rest` as one completion of the prompt."""
    text = beginning.text[len(prompt.text) :] + rest.text
    ids = beginning.ids[len(prompt.ids) :] + rest.ids
    given = len(ids) - len(rest.ids)
    trained = (False,) * given + (rest.trained or (True,) * len(rest.ids))
    return replace(rest, ids=ids, text=text, logprobs=(0.0,) * given + rest.logprobs, trained=trained)
