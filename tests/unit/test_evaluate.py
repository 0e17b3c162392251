import itertools
import json
import math
from collections import Counter

import pytest

from fakes.tables import table
from oncurve.config.loading import load_config
from oncurve.config.sentences.plan import plan
from oncurve.evaluate import (
    EVALUATION_DRAW,
    NO_VERIFIER,
    bootstrap,
    evaluate,
    maj_at_k,
    paired_difference,
    part_is_1,
    pass_at_k,
    wilson,
)
from oncurve.evaluate.evaluation import vote_of
from oncurve.rewards import Accepts, DeferredScoring, InProcess, ModelReward, RewardSet, RewardSettings
from oncurve.rewards.scoring.rewardset import verifier_of
from oncurve.rollout import EngineBase, Sampling
from oncurve.types import Completion, Group, Prompt, Score

GREEDY = Sampling(group_size=1, temperature=0)


@pytest.mark.parametrize(("n", "c", "k", "expected"), table("evaluate", "pass_at_k"))
def test_pass_at_k(n, c, k, expected) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0)])
def test_pass_at_k_refuses_what_has_no_answer(n, c, k) -> None:
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


def majority_by_enumeration(answers, correct, k) -> float:
    total = 0.0
    subsets = list(itertools.combinations(range(len(answers)), k))
    for subset in subsets:
        votes = Counter(answers[i] for i in subset if answers[i] is not None)
        if not votes:
            continue
        winners = [answer for answer, count in votes.items() if count == max(votes.values())]
        for winner in winners:
            verdicts = [correct[i] for i in range(len(answers)) if answers[i] == winner]
            total += sum(verdicts) / len(verdicts) / len(winners)
    return total / len(subsets)


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        (["A", "A", "B", "B", "C", None], "A"),
        (["A", "B", "C", "D"], "C"),
        ([None, None, "A"], "A"),
        (["A"] * 4 + ["B"] * 3 + [None], "B"),
        ([None, None], "A"),
    ],
)
def test_maj_at_k_equals_enumeration(answers, right) -> None:
    correct = [answer == right for answer in answers]
    for k in range(1, len(answers) + 1):
        assert maj_at_k(answers, correct, k) == pytest.approx(majority_by_enumeration(answers, correct, k), abs=1e-12)


def test_wilson_is_the_textbook_interval_and_stays_open_at_the_ends() -> None:
    interval = wilson(160, 500)
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.32, 0.2806177, 0.3621270), rel=1e-6)
    assert (wilson(0, 10).low, wilson(0, 10).high) == pytest.approx((0.0, 0.2775328), rel=1e-6)
    assert wilson(10, 10).high == 1.0
    with pytest.raises(ValueError, match="share"):
        wilson(1, 0)


def test_bootstrap_is_fixed_and_near_the_normal_interval() -> None:
    values = [math.sin(i * 1.7) for i in range(400)]
    first, again, other = bootstrap(values), bootstrap(values), bootstrap(values, seed=1)
    assert first == again != other
    mean = sum(values) / 400
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 399)
    assert first.value == pytest.approx(mean)
    assert first.high - first.low == pytest.approx(2 * 1.96 * deviation / 20, rel=0.1)
    assert bootstrap([2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_paired_difference_counts_only_what_changed() -> None:
    before, after = [True] * 160 + [False] * 340, [True] * 450 + [False] * 50
    gain = paired_difference(before, after)
    assert gain.value == pytest.approx(0.58)
    assert 0.53 < gain.low < 0.58 < gain.high < 0.63
    assert paired_difference(after, before).value == pytest.approx(-0.58)
    same = paired_difference([True, False], [True, False])
    assert same.value == 0.0
    assert same.low < 0 < same.high
    with pytest.raises(ValueError, match="same prompts"):
        paired_difference([True], [])


@pytest.mark.parametrize(("text", "answer"), [("7*8=56\n#### 56 \nmore", "56"), (" yes ", "yes"), ("", None)])
def test_what_a_completion_votes_for(text, answer) -> None:
    assert vote_of(text) == answer


class Answers(EngineBase):
    """An engine that writes given texts: of each prompt's the first `group_size`."""

    def __init__(self, texts: list[list[str]]) -> None:
        self.texts = texts
        self.draws: list[int] = []

    def generate(self, prompts, draw: int, sampling: Sampling, on_group=None, first_samples=None) -> list[Group]:
        self.draws.append(draw)
        groups = []
        for prompt, texts in zip(prompts, self.texts, strict=True):
            chosen = texts[: sampling.group_size]
            completions = tuple(
                Completion((1,) * max(1, len(text)), text, (-1.0,) * max(1, len(text)), "eos", i, 0)
                for i, text in enumerate(chosen)
            )
            groups.append(Group(prompt, completions, draw=draw))
        return groups


class Equals:
    """Rewards 1 where the text is the prompt's answer, 0.5 where it begins so; cannot score `?`."""

    def begin(self, step: int = 0) -> DeferredScoring:
        return DeferredScoring(self.score)

    def score(self, groups) -> list[Group]:
        def one(group: Group, text: str) -> Score:
            if text == "?":
                return Score(0.0, valid=False, fault="raised: no")
            answer = group.prompt.columns["answer"]
            return Score(1.0 if text == answer else 0.5 if text.startswith(answer) else 0.0)

        return [Group(g.prompt, g.completions, tuple(one(g, c.text) for c in g.completions), g.draw) for g in groups]


def prompts(count: int) -> list[Prompt]:
    return [Prompt(i, f"p{i}", (1,), {"answer": "a"}) for i in range(count)]


def is_1(score: Score) -> bool:
    return score.valid and score.reward >= 1


def test_evaluate_greedy_and_sampled() -> None:
    engine = Answers([["a", "b", "b", "a"], ["b", "a", "?", "b"], ["ab", "ab", "ab", "ab"]])
    result = evaluate(engine, Equals(), prompts(3), greedy=GREEDY, sampled=Sampling(group_size=4), correct=is_1)
    assert result.greedy_accuracy == wilson(1, 3)
    assert result.greedy_correct == (True, False, False)
    assert result.greedy_reward.value == pytest.approx((1 + 0 + 0.5) / 3)
    assert result.mean_reward.value == pytest.approx((0.5 + 1 / 3 + 0.5) / 3)
    assert list(result.pass_at_k) == list(result.maj_at_k) == [1, 2, 4]
    assert result.pass_at_k[1].value == pytest.approx((0.5 + 0.25 + 0) / 3)
    assert result.pass_at_k[4].value == pytest.approx(2 / 3)
    assert result.maj_at_k[4].value == pytest.approx((0.5 + 0 + 0) / 3)
    assert result.invalid == 1
    assert set(engine.draws) == {EVALUATION_DRAW}
    assert result.mean_length == pytest.approx((4 + 4 + 8) / 12)


def test_evaluation_as_json_and_as_metrics() -> None:
    result = evaluate(
        Answers([["a", "b"]] * 4), Equals(), prompts(4), greedy=GREEDY, sampled=Sampling(group_size=2), correct=is_1
    )
    read = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert read["greedy_accuracy"] == list(wilson(4, 4))
    assert read["pass_at_k"]["2"] == list(wilson(4, 4))
    metrics = result.to_metrics()
    assert metrics["eval/accuracy"] == 1.0
    assert metrics["eval/reward"] == 0.5
    assert metrics["eval/maj@2"] == 0.5
    assert metrics["eval/pass@2"] == 1.0


def test_one_prompt_gives_no_interval() -> None:
    one, two = (
        evaluate(Answers([["a", "b"]] * count), Equals(), prompts(count), sampled=Sampling(group_size=2), correct=is_1)
        for count in (1, 2)
    )
    assert "0.5000   no interval from one prompt" in one.text()
    assert "no interval from" not in two.text()


def test_what_is_correct_can_be_said_otherwise() -> None:
    result = evaluate(Answers([["ab"]]), Equals(), prompts(1), greedy=GREEDY, correct=lambda score: score.reward >= 0.5)
    assert result.greedy_correct == (True,)
    assert result.mean_reward is None
    assert result.pass_at_k == {}


def test_evaluate_refuses_nothing_to_do() -> None:
    with pytest.raises(ValueError, match="no prompts"):
        evaluate(Answers([]), Equals(), [], greedy=GREEDY)
    with pytest.raises(ValueError, match="greedy or sampled"):
        evaluate(Answers([["a"]]), Equals(), prompts(1))


TEXTS = ("#### 7", "#### 8", "7")  # right, wrong, right


class Own(RewardSettings):
    """A reward of the user's that gives these values by text, in this process."""

    values: tuple[float, ...]

    def start(self, base):
        return InProcess(lambda item: self.values[TEXTS.index(item["completion"])], Accepts(needs=(("completion",),)))


def rewards_of(*tables):
    return load_config(None, settings={"rewards": list(tables)})[0].rewards


def found(*tables, named=None):
    """The verifier, and pass@1 of three completions of which the first and the last are right."""
    chosen = rewards_of(*tables)
    verifier = verifier_of(chosen, named)
    with RewardSet.build(chosen) as rewards:
        result = evaluate(
            Answers([TEXTS]),
            rewards,
            [Prompt(0, "", (1,), {"answer": "7"})],
            greedy=Sampling(temperature=0, group_size=1),
            sampled=Sampling(group_size=3),
            correct=None if verifier is None else part_is_1(verifier),
            verifier=verifier,
        )
    return verifier, result


def exact(weight=1.0, **more):
    return {"kind": "exact", "weight": weight, **more}


def own(values, weight=1.0, name="own"):
    return Own(values=values, weight=weight, name=name)


HALF = (0.5, 1.0, 0.0)


@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0, 0.0, 1e-9, 1e9])
def test_the_weight_of_the_only_reward_does_not_matter(weight):
    verifier, result = found(exact(weight))
    assert verifier == "exact"
    assert result.greedy_correct == (True,)
    assert result.pass_at_k[1].value == pytest.approx(2 / 3)
    _, result = found(own((0.5, 1.0, 1.0), weight))  # of the user's own: half a point is not right, whatever it weighs
    assert result.greedy_correct == (False,)
    assert result.pass_at_k[1].value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "others",
    [
        [own((-1.0, 0.0, -0.5), 1.0)],  # a shaped penalty
        [own(HALF, 5.0), own((-1.0, 0.0, -0.5), -3.0, "penalty")],
        [exact(-0.5, name="wrongness"), own(HALF)],
        [exact(0.0, name="monitor")],
    ],
)
@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
def test_the_only_checker_of_answers_says_what_is_right(others, weight):
    verifier, result = found(*others, exact(weight, name="truth"))
    assert verifier == "truth"
    assert result.greedy_correct == (True,)
    assert result.pass_at_k[1].value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "tables",
    [
        [own(HALF), own(HALF, 1.0, "other")],
        [exact(0.5, name="one"), exact(0.5, name="two")],
        [own(HALF, -1.0)],
        [{"kind": "model", "path": "none"}],
        [{"kind": "model", "path": "none"}, own(HALF)],
    ],
)
def test_where_no_reward_alone_can_say_it_nothing_is_claimed(tables):
    chosen = rewards_of(*tables)
    assert verifier_of(chosen) is None
    if not any(isinstance(reward, ModelReward) for reward in chosen):
        _, result = found(*tables)
        assert result.greedy_accuracy is None
        assert (result.pass_at_k, result.maj_at_k, result.greedy_correct) == ({}, {}, ())
        assert result.mean_reward is not None
        assert "eval/accuracy" not in result.to_metrics()
    asked = {"rewards": tables, "eval": {"every": 5}, "data": {"kind": "task"}}
    assert f"note: {NO_VERIFIER}" in plan(load_config(None, settings=asked)[0])


def test_the_named_one_says_it_whatever_the_others_are():
    verifier, result = found(own(HALF), own((1.0, 0.0, 1.0), -2.0, "truth"), exact(), named="truth")
    assert verifier == "truth"
    assert result.pass_at_k[1].value == pytest.approx(2 / 3)
    assert result.to_json()["verifier"] == "truth"


def test_a_prompt_to_which_the_verifier_does_not_apply_is_neither_right_nor_wrong():
    chosen = rewards_of(exact(), own(HALF))
    rows = [Prompt(0, "", (1,), {"answer": "7"}), Prompt(1, "", (1,), {"answer": ""})]
    for rewards in (chosen, chosen[:1]):  # another reward applies to the second prompt, or none does
        with RewardSet.build(rewards) as scorer:
            wanted = {"correct": part_is_1("exact"), "verifier": "exact"}
            three = {"greedy": Sampling(temperature=0, group_size=1), "sampled": Sampling(group_size=3)}
            both, first = (
                evaluate(Answers([TEXTS] * len(given)), scorer, given, **three, **wanted) for given in (rows, rows[:1])
            )
            assert (both.unverified, first.unverified) == (1, 0)
            for name in ("greedy_accuracy", "greedy_correct", "pass_at_k", "maj_at_k"):
                assert getattr(both, name) == getattr(first, name)
            assert "exact does not apply to 1 of the prompts" in both.text()
            if len(rewards) == 2:
                none = evaluate(Answers([TEXTS]), scorer, rows[1:], **three, **wanted)
                assert (none.greedy_accuracy, none.pass_at_k, none.unverified) == (None, {}, 1)
