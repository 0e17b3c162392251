"""Rewards of a form or a length: format, repetition, length_cap, cosine. The numbers are those of their formulas."""

import pytest

from fakes.scoring import group, rewards_of
from oncurve.config import load_config
from oncurve.errors import ConfigError
from oncurve.rewards import Format, Repetition, RewardSet

THINK = {
    "<think>a</think>b": 1.0,
    "<think>\na\n</think>\nb": 1.0,
    "<think></think>": 1.0,
    "<think>a</think>b</think>c": 1.0,  # TRL's pattern has it so
    "<think>a": 0.0,
    "b<think>a</think>": 0.0,
    "<think>a<think>b</think>": 0.0,
    "a</think>b": 0.0,
    "": 0.0,
}


@pytest.mark.parametrize("text", THINK)
def test_think_is_trls_pattern(text: str) -> None:
    assert Format()(text) == THINK[text]


FORMS = {
    "think_answer": {
        "<think>a</think><answer>4</answer>": 1.0,
        "\n<think>a</think>\n<answer>4</answer>\n": 1.0,
        "<think>a</think> so <answer>4</answer>": 0.0,
        "<think>a</think><answer>4</answer>.": 0.0,
        "<answer>4</answer><think>a</think>": 0.0,
        "<think>a<answer>4</think></answer>": 0.0,
        "<think>a</think><answer>4": 0.0,
        "<think>a</think><think>a</think><answer>4</answer>": 0.0,
    },
    "answer": {
        "so <answer>4</answer>.": 1.0,
        "<answer> </answer>": 0.0,
        "<answer>4</answer><answer>5</answer>": 0.0,
        "<answer>4": 0.0,
        "4</answer>": 0.0,
    },
    "boxed": {r"so \boxed{4}": 1.0, r"\boxed{}": 0.0, r"\boxed{4": 0.0, "4": 0.0},
    "hashes": {"2+2=4\n#### 4\n": 1.0, "#### 4": 1.0, "####": 0.0, "#### 4\nso": 0.0, "#### 4\n#### 5": 0.0, "": 0.0},
}


@pytest.mark.parametrize(("preset", "text"), [(preset, text) for preset, texts in FORMS.items() for text in texts])
def test_a_form_is_there_or_not(preset: str, text: str) -> None:
    assert Format.model_validate({"preset": preset})(text) == FORMS[preset][text]


def test_a_pattern_of_ones_own_runs_in_a_worker() -> None:
    tables = [{"kind": "format", "pattern": r"(?s)^Plan:.*Answer:", "processes": 1}]
    with RewardSet.build(tables) as rewards:
        scored = rewards.score([group("Plan: a\nAnswer: b", "Answer: b")])
    assert rewards_of(scored) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("kind='format', preset='thinking'", "rewards.0.preset"),
        ("kind='format', pattern='('", "not a regular expression"),
        ("kind='format', preset='boxed', pattern='x'", "are two forms; give one of them"),
        ("kind='format', preset='boxed', prompt_opens=true", 'preset = "boxed" opens no <think>; leave it out'),
        ("kind='format', pattern='x', prompt_opens=true", "a pattern opens no <think>"),
        ("kind='repetition', ngram_size=0", "rewards.0.ngram_size"),
        ("kind='repetition', max_penalty=1.0", "rewards.0.max_penalty: should be less than 0"),
        ("kind='length_cap'", "rewards.0.max_length"),
        ("kind='length_cap', max_length=100", "rewards.0.max_length: nothing is punished"),
        ("kind='cosine', max_value_wrong=0.5", "rewards.0.max_value_wrong: a long wrong completion"),
        ("kind='cosine', min_value_wrong=0.0", "rewards.0.min_value_wrong: it is the value of the shortest wrong"),
        ("kind='cosine', min_value_correct=2.0", "rewards.0.min_value_correct: it is the value of the longest"),
        ("kind='cosine', max_len=10", "did you mean 'max_length'"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_their_key(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["rollout.max_new_tokens=100", f"rewards=[{{{words}}}]"])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "size", "expected"),
    [
        ([1, 2, 3, 4], 2, 0.0),
        ([5, 5, 5, 5, 5], 2, -0.75),
        ([1, 2, 1, 2, 1], 2, -0.5),
        ([1, 2, 3, 1, 2, 3], 3, -0.25),
        ([7, 7, 7], 1, -2 / 3),
        ([1, 2], 3, 0.0),
        ([], 3, 0.0),
    ],
)
def test_repetition_is_the_share_of_ngrams_that_occurred_before(ids: list[int], size: int, expected: float) -> None:
    assert Repetition(ngram_size=size)(ids) == pytest.approx(expected)
    assert Repetition(ngram_size=size, max_penalty=-0.1)(ids) == pytest.approx(0.1 * expected)


def test_cosine_falls_for_right_and_rises_for_wrong_answers() -> None:
    """At half of the length the middle of both curves; cos(π/4) at a quarter; beyond the end its value."""
    tables = [{"kind": "cosine", "max_length": 8, "processes": 1}]
    texts = ("4", "#### 4  ", "4" + " " * 7, "4" + " " * 20, "5", " 5  ", "5" + " " * 7, "5" + " " * 20)
    with RewardSet.build(tables) as rewards:
        scored = rewards.score([group(*texts), group("x", columns={"answer": "no formula at all"}, number=1)])

    def curve(length: int, start: float, end: float) -> float:
        from math import cos, pi

        return end + (start - end) / 2 * (1 + cos(pi * length / 8))

    expected = [curve(n, 1.0, 0.5) for n in (1, 8, 8, 8)] + [curve(n, -1.0, -0.5) for n in (1, 4, 8, 8)]
    assert rewards_of(scored)[:8] == pytest.approx(expected)
    assert rewards_of(scored)[5] == pytest.approx(-0.75)
    assert rewards_of(scored)[8] is None
