"""Examples made of the policy's own samples: which pairs, which steps, and how good a step is by where it leads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from fakes.tables import table
from oncurve.reward_models import LabelledSteps, PreferencePair
from oncurve.reward_models.labelling import MonteCarloLabels, scored_pairs, scored_steps
from oncurve.rollout import EngineBase, Sampling
from oncurve.steps import splitter_of
from oncurve.types import Completion, Group, Prompt, Score

ASKED = ({"role": "user", "content": "2+2?"},)


def written(text: str, index: int = 0) -> Completion:
    """A character a token, and an end."""
    return Completion((*map(ord, text), 2), text, (-0.5,) * (len(text) + 1), "eos", index, 3)


def judged(*said: tuple[str, float | None], number: int = 0, draw: int = 5, chat: bool = False) -> Group:
    """Completions, and what the judge gives them."""
    prompt = Prompt(number, f"p{number}:", (100, number), messages=ASKED if chat else None)
    completions = tuple(written(text, index) for index, (text, _) in enumerate(said))
    return Group(
        prompt, completions, tuple(Score(9.0, parts={"verifier": value, "other": 7.0}) for _, value in said), draw
    )


@pytest.mark.parametrize(
    ("said", "pairs"),
    [
        *table("labelling", "the_best_is_paired_with_the_worst_as_long_as_it_is_better"),
        ([("a", None), ("b", 1.0), ("c", 0.0)], ["bc"]),
        ([("a", None), ("b", 1.0)], []),
    ],
)
def test_the_best_is_paired_with_the_worst_as_long_as_it_is_better(
    said: list[tuple[str, float | None]], pairs: list[str]
) -> None:
    assert scored_pairs([judged(*said)], "verifier") == [
        PreferencePair("p0:", chosen, worse) for chosen, worse in pairs
    ]


def test_pairs_stay_within_their_group_and_keep_its_chat() -> None:
    groups = [judged(("a", 1.0), ("b", 0.0)), judged(("c", 0.5), ("d", 1.0), number=1, chat=True)]
    assert scored_pairs(groups, "verifier") == [PreferencePair("p0:", "a", "b"), PreferencePair(ASKED, "d", "c")]
    assert scored_pairs(groups, "other") == []
    assert scored_pairs(groups, "nobody") == []


def test_steps_that_a_judge_has_judged_are_labelled_within_zero_and_one() -> None:
    (group,) = [judged(("x\ny\nz", 1.0), ("x", 0.0))]
    steps = {"verifier": ((2, 1.5), (4, -1.0), (5, 0.25)), "other": ((5, 1.0),)}
    group = Group(group.prompt, group.completions, (Score(0.0, part_steps=steps), Score(1.0)))
    assert scored_steps([group], "verifier") == [LabelledSteps("p0:", "x\ny\nz", (2, 4, 5), (1.0, 0.0, 0.25))]
    assert scored_steps([group], "nobody") == []


@dataclass
class Says(EngineBase):
    """An engine that goes on as `rest(text so far, sample index)` says; what it was asked is kept."""

    rest: Callable[[str, int], str]
    asked: list[tuple[Sequence[Prompt], int, Sampling]] = field(default_factory=list)

    exact = True

    def follow(self, weights: object) -> None:
        raise AssertionError("the caller has chosen the weights")

    def close(self) -> None:
        raise AssertionError("the caller closes the engine")

    def generate(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling,
        on_group: None = None,
        first_samples: Sequence[int] = (),
    ) -> list[Group]:
        assert list(first_samples) == [0] * len(prompts)
        self.asked.append((prompts, draw, sampling))
        return [
            Group(p, tuple(written(self.rest(p.text, index), index) for index in range(sampling.group_size)))
            for p in prompts
        ]


@dataclass
class EndsIn:
    """A scorer that gives 1 to what ends in "4", nothing to what ends in "?", and else a half."""

    seen: list[Group] = field(default_factory=list)

    def score(self, groups: Sequence[Group]) -> list[Group]:
        self.seen += groups
        return [
            Group(group.prompt, group.completions, tuple(self.judged(each.text) for each in group.completions))
            for group in groups
        ]

    def judged(self, text: str) -> Score:
        return Score(0.0, parts={"verifier": {"4": 1.0, "?": None}.get(text[-1:], 0.5)})


def a_token_a_letter(prompt: Prompt, completion: Completion, ends: Sequence[int]) -> tuple[int, ...]:
    return tuple(end - 1 for end in ends)


def rolled(
    engine: Says, scorer: EndsIn, count: int = 4, context: int | None = None, tokens: int = 50, split: str = "newline"
) -> MonteCarloLabels:
    sampling = Sampling(group_size=8, max_new_tokens=tokens, temperature=0.7)
    return MonteCarloLabels(engine, scorer, "verifier", count, splitter_of(split), a_token_a_letter, sampling, context)


def test_a_step_is_as_good_as_the_share_of_ways_on_that_come_out_right() -> None:
    def rest(text: str, index: int) -> str:
        if text.endswith("1+1\n"):
            return "=2\n4" if index < 3 else "5"
        return "4" if index == 0 else "5?" if index == 1 else "6"

    engine, scorer = Says(rest), EndsIn()
    groups = [judged(("1+1\n2+2\n4", 1.0), ("1+2\n5", 0.0), ("4", 1.0), ("", 0.0))]
    found = rolled(engine, scorer)(groups)
    assert found == [
        LabelledSteps("p0:", "1+1\n2+2\n4", (4, 8, 9), (0.75, 1 / 3, 1.0)),
        LabelledSteps("p0:", "1+2\n5", (4, 5), (1 / 3, 0.0)),
        LabelledSteps("p0:", "4", (1,), (1.0,)),
    ]
    ((beginnings, draw, sampling),) = engine.asked
    assert [p.text for p in beginnings] == ["p0:1+1\n", "p0:1+1\n2+2\n", "p0:1+2\n"]
    assert [p.ids for p in beginnings] == [(100, 0, *map(ord, p.text[3:])) for p in beginnings]
    assert (draw, sampling.group_size, sampling.max_new_tokens, sampling.temperature) == (-7, 4, 50, 0.7)


@pytest.mark.parametrize(("context", "most"), [(None, 50), (1000, 50), (56, 50), (30, 24), (7, 1)])
def test_a_roll_out_has_the_room_that_is_left_behind_the_longest_beginning(context: int | None, most: int) -> None:
    engine = Says(lambda text, index: "4")
    rolled(engine, EndsIn(), context=context)([judged(("ab\nc", 1.0), ("abc\nd", 1.0))])  # 2 + 4 tokens
    assert engine.asked[0][2].max_new_tokens == most


def test_beginnings_have_ids_of_their_own() -> None:
    engine = Says(lambda text, index: "4")
    texts = [("a\nb\nc\nd", 1.0), ("a\nb\nc\nd", 0.0), ("x\ny", 0.0)]
    rolled(engine, EndsIn())([judged(*texts, number=number) for number in (0, 1, 2, 700, 100_000)])
    ids = [prompt.id for prompt in engine.asked[0][0]]
    assert len(ids) == 5 * 7 == len(set(ids))


def test_what_nobody_can_judge_has_no_label() -> None:
    engine = Says(lambda text, index: "?")
    found = rolled(engine, EndsIn())([judged(("a\nb", 0.5), ("c\nd", None))])
    assert found == [LabelledSteps("p0:", "a\nb", (2, 3), (None, 0.0))]
    assert [prompt.text for prompt in engine.asked[0][0]] == ["p0:a\n"]


@pytest.mark.parametrize("context", [5, 6])
def test_without_any_room_nothing_is_known_of_the_steps(context: int) -> None:
    engine = Says(lambda text, index: "4")
    found = rolled(engine, EndsIn(), context=context)([judged(("abc\nd", 1.0))])
    assert [example.labels for example in found] == [(None, 1.0)]
    assert engine.asked == []
