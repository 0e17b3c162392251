"""Several rewards together: weights, parts that do not apply, names, and what a step is told."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from fakes.scoring import faults_of, group, rewards_of
from fakes.tables import table
from oncurve.advantages import group_advantages
from oncurve.base.errors import ConfigError, TrainingError
from oncurve.metrics import Metrics
from oncurve.rewards import Accepts, InProcess, Python, RewardSet, RewardSettings
from oncurve.rewards.component import LARGEST_REWARD
from oncurve.steps import token_ends
from oncurve.trainer.watching.observe import observe_groups
from oncurve.types import Completion, Group, Prompt, Score


def returning(value: Any, name: str = "f", **settings: Any) -> Python:
    def function(completion: str) -> Any:
        return value[completion] if isinstance(value, dict) else value

    return Python(function=function, name=name, **settings)


def test_a_component_that_is_none_does_not_apply() -> None:
    with RewardSet.build(
        [returning({"x": None, "y": 1.0, "z": None}, "a"), returning({"x": 2.0, "y": 2.0, "z": None}, "b")]
    ) as both:
        scored = both.score([group("x", "y", "z")])
    assert rewards_of(scored) == [2.0, 3.0, None]
    assert scored[0].scores[0].parts == {"a": None, "b": 2.0}
    assert scored[0].scores[2].fault == "none: no reward applies: each returned None, or has weight 0"
    assert scored[0].scores[2].reward == 0.0


def test_a_reward_that_is_only_logged_makes_no_completion_valid() -> None:
    logged = returning(3.0, "log", weight=0.0)
    with RewardSet.build([returning({"x": None, "y": 1.0}, "a"), logged]) as both:
        scored = both.score([group("x", "y")])
    assert rewards_of(scored) == [None, 1.0]
    assert scored[0].scores[0].parts == {"a": None, "log": 3.0}
    with RewardSet.build([logged]) as alone:  # a run without a reward, as a distillation
        assert rewards_of(alone.score([group("x", "y")])) == [0.0, 0.0]


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


EXTREME = [1e308, -1e308, 1.7976931348623157e308, 1e300, -1e300, 9e299, 1e155, -1e155, 0.0, 5e-324, 1.0]


@given(
    st.lists(st.sampled_from(EXTREME), min_size=1, max_size=8),
    st.sampled_from([1.0, -1.0, 1e8, 1e-38, 1e38]),
    st.booleans(),
)
def test_finite_rewards_are_numbers_or_faults(values: list[float], weight: float, batch: bool) -> None:
    values.append(0.0)  # where all of them are too large, the step has no reward, and that is an error

    def one(completion_ids: Sequence[int]) -> float:
        return values[len(completion_ids) - 1]

    def many(completions: Sequence[str], completion_ids: Sequence[Sequence[int]], log_metric: Any) -> list[float]:
        for value in values:
            log_metric("value", value)
        return [one(ids) for ids in completion_ids]

    texts = ["x" * (index + 1) for index in range(len(values))]
    settings = {"kind": "python", "function": many if batch else one, "weight": weight}
    with RewardSet.build([settings, lambda completion_ids: 1.0 + 0.0 * len(values)]) as rewards:
        with rewards.begin() as scoring:
            scored = scoring.finish([group(*texts)])
        assert all(map(math.isfinite, scoring.metrics.values()))
    for value, reward, fault in zip(values, rewards_of(scored), faults_of(scored), strict=True):
        usable = abs(value) <= LARGEST_REWARD and abs(value * weight) <= LARGEST_REWARD
        assert (reward, fault) == ((math.fsum([value * weight, 1.0]), None) if usable else (None, "not_finite"))
    metrics = Metrics()
    observe_groups(metrics, scored, dropped=0)
    for _ in range(3):
        observe_groups(metrics, scored, dropped=0)
    assert all(map(math.isfinite, metrics.result().values()))


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("factor", [1e150, 1e200, 1e290, 2.0**1000])
def test_advantages_do_not_depend_on_the_size_of_rewards(scale: Any, factor: float) -> None:
    rewards = torch.tensor([0.0, 1.0, 3.0, -2.0, 1.0, 1.0], dtype=torch.float64)
    valid, groups = torch.tensor([True] * 5 + [False]), torch.tensor([0, 0, 1, 1, 1, 1])
    expected = group_advantages(rewards, valid, groups, scale, 1, 0.0)
    assert expected.abs().max() > 0.5
    found = group_advantages(rewards * factor, valid, groups, scale)
    torch.testing.assert_close(found, expected)


class EndsAnywhere(RewardSettings):
    """A kind whose steps end where it is told."""

    ends: tuple[int, ...] = ()

    def start(self, base: Path | None) -> InProcess:
        return InProcess(self._item, Accepts(needs=(("completion",),)))

    def _item(self, item: Any) -> dict[str, Any]:
        ends = self.ends if item["completion"] == "bad" else (3,)
        return {"reward": 1.0, "step_ends": ends, "step_rewards": [1.0] * len(ends)}


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5), min_size=1, max_size=4))
def test_steps_that_end_outside_the_text_are_a_fault_of_that_completion(ends: list[int]) -> None:
    with RewardSet.build([EndsAnywhere(ends=tuple(ends))]) as rewards:
        rewards.locate = lambda prompt, completion, offsets: tuple(offset - 1 for offset in offsets)
        scored = rewards.score([group("bad", "abc")])
    fits = ends == sorted(set(ends)) and ends[0] > 0 and ends[-1] <= 3
    assert faults_of(scored) == [None if fits else "type", None]


TEXT = "one\ntwo\nthree"

USER_FILE = """
def by_split(completion):
    return {"reward": 0.5, "steps": [len(line) for line in completion.split("\\n")]}

def own(completion):
    return {"steps": [(2, 1.0), (len(completion), 3.0)]}

def given(completion_steps, answer):
    return [float(step.strip() == answer) for step in completion_steps]

def given_all(completion_steps, **columns):
    return {"score": float("completion" in columns), "steps": [1] * len(completion_steps)}

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.25, "acc": 1, "steps": [0, 1, 0]}

def trl(completions, **kwargs):
    return [{"steps": [1.0] * (c.count("\\n") + 1)} if c else None for c in completions]

def by_ids(completion_ids):
    return {"steps": [[4, 1.0], [len(completion_ids), 3.0]]}

def by_answer(answer):
    return {"steps": [0.0, float(answer == "two"), 0.0]}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(USER_FILE)
    return tmp_path


def by_characters(prompt: Prompt, completion: Completion, ends: Sequence[int]) -> tuple[int, ...]:
    """One token a character."""
    return token_ends(ends, completion.text, completion.ids, lambda ids: "".join(map(chr, ids)))


def scored(settings: Any, groups: list[Group], base: Path | None = None) -> list[Score]:
    with RewardSet.build(settings, base=base) as rewards:
        rewards.locate = by_characters
        return [score for found in rewards.score(groups) for score in found.scores]


def steps_of(score: Score) -> list[tuple[int, float]]:
    return list(zip(score.step_ends, score.step_rewards, strict=True))


@pytest.mark.parametrize(
    ("name", "reward", "steps"),
    [
        *table("rewardset", "steps_by_signature"),
        ("given", 1 / 3, [(3, 0.0), (7, 1.0), (12, 0.0)]),
        ("by_answer", 1 / 3, [(3, 0.0), (7, 1.0), (12, 0.0)]),
    ],
)
def test_every_signature_may_score_steps(mine: Path, name: str, reward: float, steps: list[tuple[int, float]]) -> None:
    (score,) = scored([{"path": f"mine.py:{name}"}], [group(TEXT, columns={"answer": "two"})], mine)
    assert score.fault is None
    assert score.reward == pytest.approx(reward)
    assert steps_of(score) == list(map(tuple, steps))


def test_components_add_up_where_they_score_the_same_step_and_a_whole_counts_at_the_end() -> None:
    def one(completion: str) -> Any:
        return {"reward": 1.0, "steps": [[4, 1.0], [13, 2.0]]}

    def other(completion: str) -> Any:
        return {"steps": [[4, 10.0], [8, 20.0]]}

    def whole(completion: str) -> float:
        return 100.0

    (score,) = scored([Python(function=one, weight=0.5), Python(function=other), Python(function=whole)], [group(TEXT)])
    assert steps_of(score) == [(3, 10.5), (7, 20.0), (12, 101.0)]
    assert score.reward == 0.5 + 15.0 + 100.0
    assert score.parts == {"one": 1.0, "other": 15.0, "whole": 100.0}
    (score,) = scored([Python(function=other), Python(function=whole, weight=0.0)], [group(TEXT)])
    assert steps_of(score) == [(3, 10.0), (7, 20.0)]  # what has no weight is only looked at


def test_steps_that_do_not_apply_are_left_out() -> None:
    (score,) = scored([lambda completion: {"steps": [None, 1.0, None]}], [group(TEXT)])
    assert steps_of(score) == [(7, 1.0)]
    (score,) = scored([lambda completion: {"steps": [None, None, None]}], [group(TEXT)])
    assert (score.valid, score.step_ends) == (False, ())
    (score,) = scored([lambda completion: {"reward": 2.0, "steps": []}], [group("")])
    assert (score.reward, score.step_ends) == (2.0, ())


@pytest.mark.parametrize(("value", "kind", "words"), table("rewardset", "wrong_steps"))
def test_what_is_wrong_about_steps_is_a_fault_of_that_completion(value: Any, kind: str, words: str) -> None:
    def f(completion: str) -> Any:
        return value if completion == TEXT else {"steps": [1.0]}

    (bad, good) = scored([f], [group(TEXT, "fine")])
    assert bad.fault.startswith(kind)
    assert words in bad.fault
    assert not bad.valid
    assert (good.valid, good.step_rewards) == (True, (1.0,))
