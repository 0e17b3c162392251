"""The verifiable rewards: exact, numeric, task, regex, math."""

from typing import Any

import pytest

from fakes.messages import message_of
from fakes.scoring import faults_of, group, limit_beyond, rewards_of
from fakes.tables import table
from oncurve.base.errors import ConfigError, DataError
from oncurve.config import load_config
from oncurve.rewards import Choice, Exact, Format, Math, Overlong, Repetition, RewardSet


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [*table("verify", "exact_compares_the_text_of_the_answer"), ("x", "", None), ("x", None, None)],
)
def test_exact_compares_the_text_of_the_answer(completion: str, answer: Any, expected: float | None) -> None:
    assert Exact()(completion, answer) == expected


def test_regex_searches_or_matches_the_whole() -> None:
    tables = table("verify", "patterns")
    with RewardSet.build(tables) as rewards:
        (scored,) = rewards.score([group("abb", "bb", "", "<think>\nx\n</think>y")])
    assert [score.parts["regex"] for score in scored.scores] == [1.0, 1.0, 0.0, 0.0]
    assert [score.parts["whole"] for score in scored.scores] == [0.0, 1.0, 0.0, 0.0]
    assert [score.parts["think"] for score in scored.scores] == [0.0, 0.0, 0.0, 1.0]


def test_catastrophic_backtracking_is_a_timeout_of_that_completion_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with RewardSet.build([{"kind": "regex", "pattern": "(a+)+$", "processes": 1}]) as rewards:
        limit = limit_beyond(lambda: rewards.score([group("a")]))
        monkeypatch.setattr(rewards.components[0].runner, "timeout_seconds", limit)
        scored = rewards.score([group("a", "a" * 60 + "b", "b")])  # by itself it would take centuries
    assert rewards_of(scored) == [1.0, None, 0.0]
    assert faults_of(scored) == [None, "timeout", None]


@pytest.fixture(scope="module")
def math() -> Any:
    with RewardSet.build([Math()]) as rewards:
        yield rewards


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [*table("verify", "math_compares_mathematically"), ("4", "Answer is forty two.", None), ("4", "", None)],
)
def test_math_compares_mathematically(math: RewardSet, completion: str, answer: Any, expected: float | None) -> None:
    scored = math.score([group(completion, columns={"answer": answer})])
    assert rewards_of(scored) == [expected]


def test_math_that_takes_for_ever_is_a_timeout_and_the_next_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with RewardSet.build([Math(processes=1)]) as rewards:
        limit = limit_beyond(lambda: rewards.score([group(r"\boxed{4}")]))
        monkeypatch.setattr(rewards.components[0].runner, "timeout_seconds", limit)
        text = r"\boxed{" + "+".join(f"x_{{{n}}}^{{{n}}}" for n in range(1500)) + "}"
        scored = rewards.score([group(text, r"\boxed{4}")])
    assert rewards_of(scored) == [None, 1.0]
    assert faults_of(scored) == ["timeout", None]


CITIES = ["Rome", "Paris", "A city", "Oslo"]


@pytest.mark.parametrize(("completion", "right"), table("verify", "the_letter_is_found"))
def test_the_letter_is_found_where_an_answer_is_marked_or_mentioned_last(completion: str, right: float) -> None:
    assert Choice()(completion, "B") == right


@pytest.mark.parametrize(("completion", "right"), table("verify", "with_options_a_text_stands_for_its_letter"))
def test_with_options_a_text_stands_for_its_letter(completion: str, right: float) -> None:
    assert Choice(options="choices")(completion, "B", CITIES) == right


@pytest.mark.parametrize("answer", ["B", "(B)", "b.", "Paris", 1])
def test_the_answer_column_is_a_letter_a_text_or_an_index_from_0(answer: Any) -> None:
    reward = Choice(options="choices")
    assert reward.complaint({"choices": CITIES, "answer": answer}) is None
    assert [reward(text, answer, CITIES) for text in ("B", "A", "C")] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        *table("verify", "unusable_rows"),
        ({"answer": "London", "choices": CITIES}, "column 'answer' holds 'London', which is none of the options"),
        ({"answer": 4, "choices": CITIES}, "column 'answer' holds 4, which is none of the options"),
        ({"answer": None, "choices": CITIES}, "column 'answer' is empty (null)"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_place(row: dict[str, Any], said: str) -> None:
    with RewardSet.build([{"kind": "choice", "options": "choices"}]) as rewards, pytest.raises(DataError) as caught:
        rewards.check_rows([{"answer": "B", "choices": CITIES}, row], lambda index: f"line {index + 1}")
    assert str(caught.value).startswith("line 2: reward choice")
    assert said in str(caught.value)


THINK = table("verify", "think")


@pytest.mark.parametrize("text", THINK)
def test_think_is_trls_pattern(text: str) -> None:
    assert Format()(text) == THINK[text]


FORMS = table("verify", "forms")


@pytest.mark.parametrize(("preset", "text"), [(preset, text) for preset, texts in FORMS.items() for text in texts])
def test_a_form_is_there_or_not(preset: str, text: str) -> None:
    assert Format.model_validate({"preset": preset})(text) == FORMS[preset][text]


def test_a_pattern_of_ones_own_runs_in_a_worker() -> None:
    tables = [{"kind": "format", "pattern": r"(?s)^Plan:.*Answer:", "processes": 1}]
    with RewardSet.build(tables) as rewards:
        scored = rewards.score([group("Plan: a\nAnswer: b", "Answer: b")])
    assert rewards_of(scored) == [1.0, 0.0]


@pytest.mark.parametrize(("words", "said"), table("verify", "settings_that_cannot_be_are_refused_with_their_key"))
def test_settings_that_cannot_be_are_refused_with_their_key(words: str, said: str) -> None:
    assert said in message_of(ConfigError, load_config, None, ["rollout.max_new_tokens=100", f"rewards=[{{{words}}}]"])


@pytest.mark.parametrize(("ids", "size", "expected"), [*table("verify", "repetition"), ([7, 7, 7], 1, -2 / 3)])
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


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 0.0), (80, 0.0), (81, -0.05), (85, -0.25), (90, -0.5), (100, -1.0), (110, -1.0)]
)
def test_the_punishment_falls_in_a_straight_line_within_the_buffer(length: int, expected: float) -> None:
    assert Overlong(buffer=20, max_length=100)(length) == pytest.approx(expected)


def test_it_counts_tokens_and_adds_to_other_rewards() -> None:
    tables = [{"kind": "exact"}, {"kind": "overlong", "buffer": 4, "max_length": 8, "weight": 0.5}]
    with RewardSet.build(tables) as rewards:
        (scored,) = rewards.score([group("4", "4" + 5 * " ", "4" + 9 * " ", "5")])
    assert rewards_of([scored]) == [1.0, 0.75, 0.5, 0.0]
    assert [score.parts["overlong"] for score in scored.scores] == [0.0, -0.5, -1.0, 0.0]
    assert scored.scores[0].weights == (1.0, 0.5)


def test_the_longest_completion_is_that_of_the_rollout() -> None:
    words = ["rollout.max_new_tokens=100", "rewards=[{kind='exact'}, {kind='overlong', buffer=20}]"]
    config, _ = load_config(None, words)
    assert config.rewards[1].max_length is None
    exact, overlong = config.fitted_rewards
    assert (exact, overlong) == (Exact(), Overlong(buffer=20, max_length=100))
    assert overlong(90) == -0.5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("buffer=101", "rewards.0.buffer: 101 tokens are more than the 100 of max_length"),
        ("buffer=20, max_length=120", "rewards.0.max_length: nothing is punished: completions have at most 100 tokens"),
    ],
)
def test_lengths_that_do_not_fit_are_refused_before_anything_is_loaded(settings: str, said: str) -> None:
    words = ["rollout.max_new_tokens=100", f"rewards=[{{kind='overlong', {settings}}}]"]
    assert message_of(ConfigError, load_config, None, words).startswith(said)


@pytest.mark.parametrize("reward", ["{kind='repetition'}", "{kind='cosine'}"])
def test_rewards_below_0_do_not_go_with_maxrl(reward: str) -> None:
    with pytest.raises(ConfigError, match="the advantage needs rewards of 0 or more"):
        load_config(None, ["advantage.kind=maxrl", f"rewards=[{{kind='exact'}}, {reward}]"])
