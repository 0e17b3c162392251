"""Rewards while groups are still being written: what begins when, the same scores in any order, faults in between."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fakes.scoring import faults_of, group, rewards_of
from fakes.scripted import TableModel
from fakes.waiting import until
from oncurve.evaluate import evaluate
from oncurve.models import LocalWeights
from oncurve.rewards import RewardSet
from oncurve.rollout import EngineBase, InProcessEngine, Sampling
from oncurve.types import Group, Prompt

REWARDS = """
import os, time

def noted(completion, answer):
    if completion:
        with open(os.path.join(answer, completion), "w"):
            pass
    return float(len(completion))

def faulty(completion):
    if completion == "raise":
        raise KeyError("no")
    if completion == "die":
        os._exit(7)
    if completion == "sleep":
        time.sleep(3600)
    return float(len(completion))

def batch(prompts, completions, log_metric, log_extra, **columns):
    if "bad" in completions:
        raise RuntimeError("I will not")
    log_metric("seen", len(completions))
    log_extra("text", completions)
    return [float(len(text)) for text in completions]

def nap(completion_ids):
    time.sleep(0.05)
    return float(len(completion_ids))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring")
    (folder / "rewards.py").write_text(REWARDS)
    return folder


@pytest.fixture(scope="module")
def built(folder: Path) -> Iterator[Callable[..., RewardSet]]:
    made: dict[str, RewardSet] = {}

    def build(name: str) -> RewardSet:
        if name not in made:
            made[name] = RewardSet.build([{"path": f"rewards.py:{name}", "timeout_seconds": 30.0}], base=folder)
        return made[name]

    yield build
    for rewards in made.values():
        rewards.close()


GROUPS = [group("a", "bb", number=0), group("ccc", "d", "eeeee", number=1), group("ff", number=2), group("", number=3)]


def in_order(rewards: RewardSet, groups: list[Group], order: list[int]) -> list[Group]:
    """The groups with their scores, after those of `order` were submitted, in that order."""
    with rewards.begin() as scoring:
        for index in order:
            scoring.submit(index, groups[index])
        return scoring.finish(groups)


def running(rewards: RewardSet) -> set[int]:
    return {pid for part in rewards.components for pid in part.runner.pids}


@pytest.mark.parametrize("order", [[], [0, 1, 2, 3], [3, 1], [2, 0, 3, 1]])
@pytest.mark.parametrize("name", ["faulty", "batch"])
def test_scores_do_not_depend_on_what_was_submitted_nor_on_the_order(
    built: Callable[..., RewardSet], name: str, order: list[int]
) -> None:
    rewards = built(name)
    assert in_order(rewards, GROUPS, order) == rewards.score(GROUPS)
    assert rewards_of(in_order(rewards, GROUPS, order)) == [1.0, 2.0, 3.0, 1.0, 5.0, 2.0, 0.0]


def test_workers_score_a_group_while_the_engine_writes_the_others(folder: Path, tmp_path: Path) -> None:
    """The engine does not go on before a worker has left word: without overlap it would wait in vain."""
    done: list[list[str]] = []

    def submit_and_wait(index: int, group: Group) -> None:
        scoring.submit(index, group)
        texts = {completion.text for completion in group.completions} - {""}
        until(lambda: texts <= set(os.listdir(tmp_path)))
        done.append(sorted(texts))

    with RewardSet.build([{"path": "rewards.py:noted", "processes": 1}], base=folder) as rewards:
        prompts = [Prompt(n, "", (n + 1,), {"answer": str(tmp_path)}) for n in range(4)]
        with rewards.begin() as scoring:
            groups = engine(words=True).generate(prompts, 0, on_group=submit_and_wait)
            scored = scoring.finish(groups)
    assert len(done) == 4
    assert rewards_of(scored) == [float(len(c.text)) for each in groups for c in each.completions]
    assert scoring.overlapped_seconds > 0


def test_evaluation_overlaps_too(folder: Path, tmp_path: Path) -> None:
    class Slow(EngineBase):
        def generate(self, prompts: Any, draw: int, sampling: Any, on_group: Any, firsts: Any) -> list[Group]:
            groups = [group(f"{p.id}x", columns={"answer": str(tmp_path)}, number=p.id) for p in prompts]
            for index in (2, 0, 1):
                on_group(index, groups[index])
                until(lambda name=f"{index}x": name in os.listdir(tmp_path))  # type: ignore[misc]
            return groups

    with RewardSet.build([{"path": "rewards.py:noted", "processes": 1}], base=folder) as rewards:
        result = evaluate(
            Slow(), rewards, [Prompt(n, "", (1,)) for n in range(3)], greedy=Sampling(group_size=1, temperature=0)
        )
    assert result.greedy_reward is not None
    assert result.greedy_reward.value == 2.0


@pytest.mark.parametrize(("text", "kind"), [("raise", "exception"), ("die", "died")])
def test_a_fault_while_groups_are_written_is_that_completions_alone(
    built: Callable[..., RewardSet], text: str, kind: str
) -> None:
    rewards = built("faulty")
    groups = [group("a", text, "b", number=0), group("cc", number=1), group("ddd", number=2)]
    with rewards.begin() as scoring:
        scoring.submit(1, groups[1])
        scoring.submit(0, groups[0])
        until(lambda: len(scoring._components[0].job._work.replies) == 4)
        scoring.submit(2, groups[2])
        scored = scoring.finish(groups)
    assert rewards_of(scored) == [1.0, None, 1.0, 2.0, 3.0]
    assert faults_of(scored) == [None, kind, None, None, None]


def test_an_interrupt_while_groups_are_written_leaves_workers_that_answer(built: Callable[..., RewardSet]) -> None:
    rewards = built("faulty")
    rewards.score([group("a", "b", "c")])
    before = running(rewards)

    def interrupted(index: int, each: Group) -> None:
        scoring.submit(index, group("sleep", "sleep", number=index))
        until(lambda: any(worker.pending for worker in rewards.components[0].runner._dispatcher.workers))
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), rewards.begin() as scoring:
        engine().generate([Prompt(0, "", (1,))], 0, on_group=interrupted)
    assert rewards_of(rewards.score([group("a", "bb")])) == [1.0, 2.0]
    until(lambda: not any(psutil.pid_exists(pid) for pid in before - running(rewards)))
    assert before - running(rewards)


def engine(words: bool = False) -> InProcessEngine:
    """Completions of 1 to 12 tokens, random."""

    class Words:
        all_special_ids: tuple[int, ...] = ()

        def decode(self, ids: Any, **_: Any) -> str:
            return "-".join(map(str, ids))

    made = InProcessEngine(Sampling(group_size=2, max_new_tokens=12), Words() if words else None, (0,))
    made.follow(LocalWeights(TableModel(torch.zeros(7, 7)), 0))
    return made
