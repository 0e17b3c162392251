"""What a judge says of the policy's own samples, as examples for a reward model: pairs, or labelled steps.

The judge is one of the run's rewards: a verifier, the built-in task's step checker, or a function of yours. Steps that
no judge looks at are labelled by roll-outs (Math-Shepherd, Wang et al., arXiv:2312.08935): a step is as good as the
share of completions from its end on that come out right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from oncurve.rollout import RolloutEngine, Sampling
from oncurve.steps import Splitter
from oncurve.types import Completion, Group, LabelledSteps, Messages, PreferencePair, Prompt

__all__ = ["Labeller", "RollOuts", "judged_pairs", "judged_steps"]

Labeller = Callable[[Sequence[Group]], list[PreferencePair] | list[LabelledSteps]]
"""Scored groups -> what a reward model can learn from them."""

RIGHT = 1.0
"""What the judge gives a completion that is right."""

ROLL_OUT_DRAW = -2
"""Training draws count up from 0 and evaluations have -1; roll-outs of draw d have -2 - d."""


def judged_pairs(groups: Sequence[Group], judge: str) -> list[PreferencePair]:
    """Of each group the best completion with the worst, the second best with the second worst, ...

    As long as the judge puts one above the other: at most half as many pairs as completions, each completion in one
    pair at most. Where it puts them level the earlier one is the better.
    """
    pairs = []
    for group in groups:
        known = [
            (value, completion)
            for completion, score in zip(group.completions, group.scores, strict=True)
            if (value := score.parts.get(judge)) is not None
        ]
        known.sort(key=lambda item: (-item[0], item[1].sample_index))
        for (high, better), (low, worse) in zip(known, reversed(known), strict=True):
            if high <= low:
                break
            pairs.append(PreferencePair(_asked(group.prompt), better.text, worse.text))
    return pairs


def judged_steps(groups: Sequence[Group], judge: str) -> list[LabelledSteps]:
    """Every completion whose steps the judge has judged, a reward above one half meaning that a step is right."""
    return [
        LabelledSteps(
            _asked(group.prompt),
            completion.text,
            tuple(end for end, _ in steps),
            tuple(min(1.0, max(0.0, reward)) for _, reward in steps),
        )
        for group in groups
        for completion, score in zip(group.completions, group.scores, strict=True)
        if (steps := score.part_steps.get(judge))
    ]


class _Scorer(Protocol):
    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their scores."""


@dataclass(frozen=True)
class RollOuts:
    """Labels steps by where they lead: `count` completions from each step's end, judged by `judge`.

    engine     follows the policy that is to complete them
    scorer     the run's rewards
    split      where steps end in a text
    locate     (prompt, completion, offsets) -> the tokens that end them
    sampling   as in training
    longest    the most tokens that a row of the model may have, prompt and completion together; None: any

    A completion's last step needs no roll-outs: it is right where the completion is. A roll-out may have as many tokens
    as a completion; of beginnings with less room in the model, as many as are left behind the longest of those.
    """

    engine: RolloutEngine
    scorer: _Scorer
    judge: str
    count: int
    split: Splitter
    locate: Callable[[Prompt, Completion, Sequence[int]], tuple[int, ...]]
    sampling: Sampling
    longest: int | None = None

    def __call__(self, groups: Sequence[Group]) -> list[LabelledSteps]:
        """The completions of scored groups with a share for each of their steps."""
        found: list[LabelledSteps] = []
        begun: list[tuple[int, int, Group, Completion]] = []
        beginnings: list[Prompt] = []
        for group in groups:
            for completion, score in zip(group.completions, group.scores, strict=True):
                ends, own = self.split(completion.text), score.parts.get(self.judge)
                if not ends or own is None:
                    continue
                tokens = self.locate(group.prompt, completion, ends)
                written = self._written(group.prompt, completion, ends[:-1], tokens[:-1])
                for step, (end, token) in enumerate(zip(written, tokens[:-1], strict=True)):
                    begun.append((len(found), step, group, completion))
                    beginnings.append(_beginning(group.prompt, completion, end, token, step))
                labels = (*(None for _ in ends[:-1]), float(own >= RIGHT))
                found.append(LabelledSteps(_asked(group.prompt), completion.text, tuple(ends), labels))
        shares = self._shares(beginnings, begun) if begun else []
        for (place, step, _, _), share in zip(begun, shares, strict=True):
            example = found[place]
            labels = (*example.labels[:step], share, *example.labels[step + 1 :])
            found[place] = LabelledSteps(example.prompt, example.completion, example.ends, labels)
        return found

    def _written(self, prompt: Prompt, completion: Completion, ends: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Where the text of the tokens that end some steps ends: a token may write into the next step."""
        found = []
        beyond = self.locate(prompt, completion, [end + 1 for end in ends])
        for end, token, writer in zip(ends, tokens, beyond, strict=True):
            while writer == token and end < len(completion.text):
                end += 1
                (writer,) = self.locate(prompt, completion, [end + 1])
            found.append(end)
        return found

    def _shares(
        self, beginnings: Sequence[Prompt], begun: Sequence[tuple[int, int, Group, Completion]]
    ) -> list[float | None]:
        """The share of roll-outs from each beginning that come out right; None where none could be judged."""
        most = self.sampling.max_new_tokens
        room = [most if self.longest is None else self.longest - len(each.ids) for each in beginnings]
        whole: dict[int, Group] = {}
        for fits in (True, False):  # those near the end of that room do not cut the others short
            chosen = [index for index, left in enumerate(room) if (left >= most) == fits and left > 0]
            if not chosen:
                continue
            limit = min(most, *(room[index] for index in chosen))
            sampling = self.sampling.model_copy(update={"group_size": self.count, "max_new_tokens": limit})
            draw = ROLL_OUT_DRAW - begun[0][2].draw
            written = self.engine.generate([beginnings[index] for index in chosen], draw, sampling)
            for index, rolled in zip(chosen, written, strict=True):
                prompt = begun[index][2].prompt
                ends = tuple(_joined(beginnings[index], end, prompt) for end in rolled.completions)
                whole[index] = Group(prompt, ends)
        shares: list[float | None] = [None] * len(beginnings)
        for index, group in zip(whole, self.scorer.score(list(whole.values())) if whole else (), strict=True):
            said = [value for score in group.scores if (value := score.parts.get(self.judge)) is not None]
            shares[index] = sum(value >= RIGHT for value in said) / len(said) if said else None
        return shares


def _asked(prompt: Prompt) -> Messages:
    return prompt.text if prompt.messages is None else tuple(prompt.messages)


def _beginning(prompt: Prompt, completion: Completion, end: int, token: int, step: int) -> Prompt:
    """Prompt and completion up to a step's end, as a prompt with an id that nothing else has."""
    number = ((prompt.id << 12) + completion.sample_index << 10) + step
    return Prompt(number, prompt.text + completion.text[:end], prompt.ids + completion.ids[: token + 1])


def _joined(beginning: Prompt, rest: Completion, prompt: Prompt) -> Completion:
    """A roll-out as a completion of the prompt itself."""
    text = beginning.text[len(prompt.text) :] + rest.text
    ids = beginning.ids[len(prompt.ids) :] + rest.ids
    logprobs = (0.0,) * (len(ids) - len(rest.ids)) + rest.logprobs
    return Completion(ids, text, logprobs, rest.ended, rest.sample_index, rest.policy_version)
