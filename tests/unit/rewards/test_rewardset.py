"""Several rewards together: weights, parts that do not apply, names, and what a step is told."""

import logging
from typing import Any

import pytest

from fakes.scoring import faults_of, group, rewards_of
from oncurve.errors import ConfigError, RewardError, TrainingError
from oncurve.rewards import Python, RewardSet


def returning(value: Any, name: str = "f", **settings: Any) -> Python:
    def function(completion: str) -> Any:
        return value[completion] if isinstance(value, dict) else value

    return Python(function=function, name=name, **settings)


def test_the_reward_is_the_weighted_sum_of_its_parts() -> None:
    with RewardSet.build([returning(2.0, "a", weight=0.5), returning(3.0, "b", weight=-1.0)]) as rewards:
        (scored,) = rewards.score([group("x")])
    assert scored.scores[0].reward == -2.0
    assert scored.scores[0].parts == {"a": 2.0, "b": 3.0}
    assert scored.scores[0].valid
    assert scored.scores[0].fault is None


def test_a_component_that_is_none_does_not_apply() -> None:
    with RewardSet.build(
        [returning({"x": None, "y": 1.0, "z": None}, "a"), returning({"x": 2.0, "y": 2.0, "z": None}, "b")]
    ) as both:
        scored = both.score([group("x", "y", "z")])
    assert rewards_of(scored) == [2.0, 3.0, None]
    assert scored[0].scores[0].parts == {"a": None, "b": 2.0}
    assert scored[0].scores[2].fault == "none: no reward applies: every component returned None"
    assert scored[0].scores[2].reward == 0.0


def test_on_error_masks_values_or_raises() -> None:
    values = {"x": float("nan"), "y": 1.0}
    good = returning(5.0, "good")
    for on_error, expected in (("mask", [None, 6.0]), (-2.0, [3.0, 6.0])):
        with RewardSet.build([returning(values, "bad", on_error=on_error), good]) as rewards:
            scored = rewards.score([group("x", "y")])
        assert rewards_of(scored) == expected
        assert faults_of(scored) == ["not_finite", None]
        assert rewards.fault_counts == {"not_finite": 1}
    assert scored[0].scores[0].parts == {"bad": -2.0, "good": 5.0}
    with (
        RewardSet.build([returning(values, "bad", on_error="raise"), good]) as rewards,
        pytest.raises(RewardError, match="reward bad failed"),
    ):
        rewards.score([group("x", "y")])


@pytest.mark.parametrize("on_error", ["mask", 0.0])
def test_a_whole_step_of_faults_stops_the_run_and_shows_the_first(on_error: Any) -> None:
    def broken(completion: str) -> float:
        raise KeyError(f"no {completion}")

    with (
        RewardSet.build([Python(function=broken, on_error=on_error)]) as rewards,
        pytest.raises(
            TrainingError, match=r"(?s)2 completions have a fault \(2 exception\).*of broken:.*KeyError: 'no x'"
        ),
    ):
        rewards.score([group("x", "y")])


def test_a_whole_step_to_which_nothing_applies_stops_the_run() -> None:
    with (
        RewardSet.build([{"kind": "numeric"}]) as rewards,
        pytest.raises(TrainingError, match=r"no reward applies to any of 2 completions.*answer column"),
    ):
        rewards.score([group("1", "2", columns={"answer": "four"})])


def test_a_batch_that_faults_is_called_again_once_a_group(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def moody(completions: list[str], **columns: Any) -> list[float]:
        calls.append(len(completions))
        if "bad" in completions:
            raise RuntimeError("I will not")
        return [1.0] * len(completions)

    groups = [group("a", "b", number=0), group("c", "bad", number=1), group("d", number=2)]
    with RewardSet.build([moody]) as rewards, caplog.at_level(logging.WARNING, "oncurve.rewards"):
        scored = rewards.score(groups)
        rewards.score(groups)
    assert calls == [5, 2, 2, 1] * 2
    assert rewards_of(scored) == [1.0, 1.0, None, None, 1.0]
    assert scored[1].scores[0].fault == "exception: moody: RuntimeError: I will not"
    assert [record.message for record in caplog.records] == [
        "reward moody failed on a whole batch (RuntimeError: I will not); it is called once per group now"
    ]


def test_interrupts_and_abandoned_steps_pass_through_a_reward_in_this_process() -> None:
    calls: list[str] = []

    def interrupted(completion: str) -> float:
        calls.append(completion)
        raise KeyboardInterrupt

    with RewardSet.build([interrupted]) as rewards, pytest.raises(KeyboardInterrupt):
        rewards.score([group("a", "b")])
    assert calls == ["a"]


def test_a_table_without_a_kind_is_python_where_it_names_code_and_refused_elsewhere() -> None:
    with RewardSet.build([{"function": lambda completion: 2.0}]) as rewards:
        assert rewards_of(rewards.score([group("1")])) == [2.0]
    with pytest.raises(ConfigError, match=r"rewards\.0\.kind: missing; choose one of: python, exact"):
        RewardSet.build([{"weight": 1.0}])


def test_what_a_reward_logs_stays_with_its_completion_when_a_batch_falls_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def picky(completions: list[str], log_extra: Any) -> list[float]:
        if "bad" in completions:
            raise RuntimeError("I will not")
        log_extra("text", completions)
        log_extra("maybe", [None if text == "a" else {"long": len(text)} for text in completions])
        log_extra("short", [1])
        return [1.0] * len(completions)

    groups = [group("a", "bb", number=0), group("bad", "c", number=1), group("d", "e", "f", number=2)]
    with RewardSet.build([picky, lambda completion: 0.0]) as rewards, caplog.at_level(logging.WARNING):
        scored = rewards.score(groups)
        again = rewards.score([group("z", "y")])
    noted = [[score.extras for score in each.scores] for each in scored]
    assert noted[0] == [{"picky/text": "a"}, {"picky/text": "bb", "picky/maybe": {"long": 2}}]
    assert noted[1] == [{}, {}]
    assert [extras["picky/text"] for extras in noted[2]] == ["d", "e", "f"]
    assert [score.extras["picky/text"] for score in again[0].scores] == ["z", "y"]
    left_out = [said for said in caplog.messages if "log_extra('short', ...) needs one value per completion" in said]
    assert len(left_out) == 1
