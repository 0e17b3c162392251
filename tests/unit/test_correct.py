"""What evaluation counts as correct: one reward's verdict, whatever the rewards weigh."""

import pytest

from oncurve.config.loading import load_config
from oncurve.config.sentences.plan import plan
from oncurve.evaluate import NO_VERIFIER, evaluate, part_is_1
from oncurve.rewards import Accepts, InProcess, ModelReward, RewardSet, RewardSettings
from oncurve.rewards.scoring.rewardset import verifier_of
from oncurve.rollout import EngineBase, Sampling
from oncurve.types import Completion, Group, Prompt

TEXTS = ("#### 7", "#### 8", "7")  # right, wrong, right


class Answers(EngineBase):
    """Gives every prompt the three texts."""

    def generate(self, prompts, draw, sampling, on_group=None, first_samples=None):
        groups = [
            Group(
                prompt,
                tuple(
                    Completion((1,), text, (0.0,), "eos", index, 0)
                    for index, text in enumerate(TEXTS[: sampling.group_size])
                ),
            )
            for prompt in prompts
        ]
        for index, group in enumerate(groups):
            if on_group is not None:
                on_group(index, group)
        return groups


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
            Answers(),
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
        [own(HALF, 0.2)],
        [own(HALF, -1.0)],
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


def test_of_rewards_of_the_users_own_the_only_one_that_counts_says_it():
    verifier, result = found(own((1.0, 0.0, 1.0), 0.5), own((-1.0, 0.0, -0.5), -1.0, "penalty"))
    assert verifier == "own"
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
            both, first = (evaluate(Answers(), scorer, given, **three, **wanted) for given in (rows, rows[:1]))
            assert (both.unverified, first.unverified) == (1, 0)
            for name in ("greedy_accuracy", "greedy_correct", "pass_at_k", "maj_at_k"):
                assert getattr(both, name) == getattr(first, name)
            assert "exact does not apply to 1 of the prompts" in both.text()
            if len(rewards) == 2:
                none = evaluate(Answers(), scorer, rows[1:], **three, **wanted)
                assert (none.greedy_accuracy, none.pass_at_k, none.unverified) == (None, {}, 1)


def test_what_is_one_quantity_has_one_interval_and_one_line():
    _, result = found(exact())
    assert result.greedy_accuracy == result.greedy_reward
    assert result.mean_reward == result.pass_at_k[1]
    assert result.text().count("mean reward") == 1
    assert "mean reward = pass@1" in result.text()
    _, other = found(own(HALF))
    assert other.mean_reward != other.pass_at_k[1]
    assert "  pass@1 = maj@1 " in other.text()
