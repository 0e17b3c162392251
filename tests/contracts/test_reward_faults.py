"""Fourteen ways in which a reward can fail, in each signature: the documented outcome, no hang, no silent zero."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from fakes.scoring import faults_of, group, limit_beyond, rewards_of
from fakes.tables import table
from oncurve.base.errors import RewardError, TrainingError
from oncurve.rewards import RewardSet
from oncurve.types import Group

FAULTY = """
import os, sys, time

class Own(BaseException):
    pass

def endless():
    while True:
        pass

def throw():
    raise Own("mine")

FAULTS = {
    "raise": lambda: 1 / 0,
    "base": throw,
    "sys.exit": lambda: sys.exit(0),
    "os._exit": lambda: os._exit(0),
    "endless": endless,
    "sleep": lambda: time.sleep(3600),
    "allocate": lambda: bytearray(1 << 45),
    "none": lambda: None,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "type": lambda: "1.0",
}

def columns(completion):
    return FAULTS[completion]() if completion in FAULTS else len(completion) / 10

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": columns(solution_str)}

def trl(prompts, completions, **kwargs):
    if "shorter" in completions:
        return [1.0] * (len(completions) - 1)
    if "empty" in completions:
        return []
    if "single" in completions:
        return [1.0]
    if "longer" in completions:
        return [1.0] * (len(completions) + 1)
    return [columns(completion) for completion in completions]
"""

# What the completion's fault is called. "none" is no fault where another part applies; here it is the only part.
OUTCOMES = table("reward_faults", "outcomes")
CALLED_AGAIN = {"raise", "base", "sys.exit", "os._exit", "endless", "sleep", "allocate"}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RewardSet]]:
    """A reward set by signature and `on_error`, each made once: starting a worker is what takes time here."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "faulty.py").write_text(FAULTY)

    @cache
    def built(signature: str, on_error: str | float = "mask") -> RewardSet:
        table = {"path": f"faulty.py:{signature}", "on_error": on_error, "processes": 1, "timeout_seconds": 30.0}
        return stack.enter_context(RewardSet.build([table], base=folder))

    with ExitStack() as stack:
        yield built


@pytest.fixture(params=["columns", "compute_score", "trl"])
def rewards(request: pytest.FixtureRequest, sets: Callable[..., RewardSet]) -> RewardSet:
    return sets(request.param)


def with_one_fault(fault: str) -> list[Group]:
    return [group("a", "bb", number=0), group("ccc", fault, number=1), group("dddd", number=2)]


@pytest.mark.parametrize("fault", OUTCOMES)
def test_a_fault_is_masked_named_and_counted_and_its_siblings_are_scored(
    rewards: RewardSet, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = rewards.components
    if OUTCOMES[fault] == "timeout":
        limit = limit_beyond(lambda: rewards.score([group("warm", "up")]))
        monkeypatch.setattr(part.runner, "timeout_seconds", limit)
    scored = rewards.score(with_one_fault(fault))
    whole_group = part.accepts.batch and fault in CALLED_AGAIN  # a batch function cannot say which completion it was
    expected = [None, None] if whole_group else [0.3, None]
    assert rewards_of(scored) == [0.1, 0.2, *expected, 0.4]
    kind = OUTCOMES[fault]
    assert faults_of(scored) == [None, None, kind if whole_group else None, kind, None]
    bad = scored[1].scores[1]
    assert (bad.reward, bad.valid, bad.parts) == (0.0, False, {part.name: None})
    assert bad.fault is not None
    assert len(bad.fault) > len(f"{kind}: {part.name}: ")


@pytest.mark.parametrize("fault", [name for name in OUTCOMES if name not in ("endless", "sleep", "none")])
def test_a_fault_may_stop_the_run_instead(sets: Callable[..., RewardSet], fault: str) -> None:
    words = rf"reward columns failed \({OUTCOMES[fault]}\), with on_error = 'raise'"
    with pytest.raises(RewardError, match=words):
        sets("columns", "raise").score(with_one_fault(fault))


def test_a_fault_may_have_a_stated_value_and_is_counted_still(sets: Callable[..., RewardSet]) -> None:
    rewards = sets("columns", -1.0)
    for fault in ("raise", "os._exit", "nan", "type"):
        scored = rewards.score(with_one_fault(fault))
        assert rewards_of(scored) == [0.1, 0.2, 0.3, -1.0, 0.4]
        assert faults_of(scored) == [None, None, None, OUTCOMES[fault], None]
    assert rewards_of(rewards.score(with_one_fault("none"))) == [0.1, 0.2, 0.3, None, 0.4]  # None is no fault


@pytest.mark.parametrize(("fault", "count"), [("empty", 0), ("single", 1), ("shorter", 4), ("longer", 6)])
@pytest.mark.parametrize("on_error", ["mask", "raise", 0.0])
def test_a_list_of_the_wrong_length_is_always_an_error(
    sets: Callable[..., RewardSet], fault: str, count: int, on_error: Any
) -> None:
    with pytest.raises(RewardError, match=f"reward trl returned {count} values for 5 completions"):
        sets("trl", on_error).score(with_one_fault(fault))


@pytest.mark.parametrize("fault", ["raise", "os._exit", "nan", "type", "none"])
def test_a_step_of_nothing_but_faults_stops_the_run(rewards: RewardSet, fault: str) -> None:
    with pytest.raises(TrainingError, match=r"any of 4 completions|of 4 completions have a fault"):
        rewards.score([group(fault, fault, number=0), group(fault, fault, number=1)])


IN_PROCESS = {
    "raise": ("exception", lambda: 1 / 0),
    "base": ("exception", lambda: (_ for _ in ()).throw(BaseException("mine"))),
    "sys.exit": ("exit", lambda: (_ for _ in ()).throw(SystemExit(0))),
    "allocate": ("memory", lambda: bytearray(1 << 60)),
    "none": ("none", lambda: None),
    "nan": ("not_finite", lambda: float("nan")),
    "inf": ("not_finite", lambda: float("inf")),
    "type": ("type", lambda: [1.0]),
}


@pytest.mark.parametrize("fault", IN_PROCESS)
def test_in_this_process_all_but_the_deadly_ones_have_the_same_outcome(fault: str) -> None:
    kind, act = IN_PROCESS[fault]

    def closure(completion: str) -> Any:
        return act() if completion == fault else 1.0

    with RewardSet.build([closure]) as rewards:
        scored = rewards.score([group("a", fault), group("b", number=1)])
    assert rewards_of(scored) == [1.0, None, 1.0]
    assert faults_of(scored) == [None, kind, None]
