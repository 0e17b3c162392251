"""A disk that refuses: nothing essential is lost, memory is bounded, and the user is told at a falling rate.

The refusals are those of the kernel for `/dev/full`, to which everything is written while the disk is "full".
"""

import builtins
import logging
import os
import random
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.loops import make_loop, resumed
from fakes.tiny_policy import random_groups
from oncurve import durable
from oncurve.base.errors import ConfigError
from oncurve.config import load_config
from oncurve.metrics import METRICS
from oncurve.report import EvaluationFiles, RolloutFiles
from oncurve.trainer import Checkpoints, Recorder, RolloutsSettings, TrainerState
from oncurve.trainer.saving import recorder as module
from oncurve.trainer.saving.recorder import Refusals

if not os.path.exists("/dev/full"):
    pytest.skip("this system has no /dev/full", allow_module_level=True)
VARIES = {name for name, metric in METRICS.items() if metric.unit in ("seconds", "tokens per second", "bytes")}
STEPS = 5


class FullDisk:
    """While `full`, what durable writes goes to `/dev/full`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = False
        real_open, real_pwrite, device = builtins.open, os.pwrite, os.open("/dev/full", os.O_WRONLY)

        def open_(path: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            writes = self.full and mode in ("xb", "wb")
            return real_open("/dev/full", "wb") if writes else real_open(path, mode, *more, **named)

        def pwrite(descriptor: int, data: bytes, offset: int) -> int:
            return os.write(device, data) if self.full else real_pwrite(descriptor, data, offset)

        for room in ("files", "tensors"):
            patch.setattr(f"oncurve.durable.{room}.open", open_, raising=False)
        patch.setattr("oncurve.durable.log.os.pwrite", pwrite)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def lines(run: Path) -> list[dict[str, float]]:
    varies = {*VARIES, "disk/refused_writes"}
    return [{k: v for k, v in line.items() if k not in varies} for line in durable.read_log(run / "metrics.jsonl")]


def weights(run: Path) -> bytes:
    return (run / f"checkpoints/step-{STEPS:06d}/learner.safetensors").read_bytes()


def train(run: Path, on_step: Callable[[int], None]) -> dict[int, float]:
    """A run of `STEPS` steps with a checkpoint after each; returns the refused writes by step."""
    loop, seen = make_loop(run, steps=STEPS), {}

    def observer(result: Any) -> None:
        seen[result.step] = result.metrics.get("disk/refused_writes", 0.0)
        on_step(result.step)

    loop.observers = (observer,)
    loop.train()
    loop.recorder.close()
    return seen


def test_an_evaluation_waits_for_the_disk(tmp_path: Path, disk: FullDisk) -> None:
    recorder, result = Recorder(tmp_path, TrainerState()), {"id": 7, "right": True}
    disk.full = True
    recorder.evaluation(0, [result])
    disk.full = False
    recorder.evaluation(3, [result])
    recorder.close()
    assert [EvaluationFiles(tmp_path).read(step) for step in (0, 3)] == [{7: result}, {7: result}]


@pytest.mark.parametrize("seed", range(2))
def test_a_disk_that_is_full_for_random_steps_changes_no_number(tmp_path: Path, disk: FullDisk, seed: int) -> None:
    chance = random.Random(seed)
    full = {step for step in range(1, STEPS) if chance.random() < 0.5} | {1 + seed}

    def on_step(step: int) -> None:
        disk.full = step in full - {STEPS}

    seen = train(tmp_path / "out", on_step)
    train(tmp_path / "whole", lambda step: None)
    assert {step for step, count in seen.items() if count} >= {step + 1 for step in full}
    assert seen[1] == 0
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")
    files = [RolloutFiles(tmp_path / run) for run in ("out", "whole")]
    assert [files[0].path(step).read_bytes() for step in files[0].steps()] == [
        files[1].path(step).read_bytes() for step in range(1, STEPS + 1)
    ]
    assert not list((tmp_path / "out").rglob(".tmp-*"))


def test_updates_do_not_wait_for_the_groups_to_be_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, updated, content = make_loop(tmp_path, steps=1), threading.Event(), module._content

    def slow_content(*arguments: Any) -> bytes:
        assert updated.wait(60)
        return content(*arguments)

    monkeypatch.setattr(module, "_content", slow_content)
    update = loop.learner.update
    loop.learner.update = lambda batch: (update(batch), updated.set())[0]
    loop.train()
    assert RolloutFiles(tmp_path).steps() == (1,)


@pytest.mark.parametrize("fails", ["update", "write"])
def test_a_step_that_fails_has_its_groups_and_no_finished_step_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    loop = make_loop(tmp_path, steps=STEPS)
    loop.config = replace(loop.config, checkpoint_every=0)
    finished, error = [], durable.StorageError("this is read-only")

    def fail(*_: Any) -> None:
        raise error

    def on_step(result: Any) -> None:
        finished.append(result.step)
        if result.step == 2:
            owner, name = (loop.learner, "update") if fails == "update" else (RolloutFiles, "write")
            monkeypatch.setattr(owner, name, fail)

    loop.observers = (on_step,)
    with pytest.raises(durable.StorageError, match="this is read-only"):
        loop.train()
    loop.recorder.close()
    assert RolloutFiles(tmp_path).steps() == ((1, 2, 3) if fails == "update" else (1, 2))
    assert loop.checkpoints.newest == (2 if fails == "update" else 3)


def test_a_disk_that_stays_full_is_an_error_at_the_end_and_the_last_checkpoint_is_whole(
    tmp_path: Path, disk: FullDisk
) -> None:
    def on_step(step: int) -> None:
        disk.full = step >= 3

    with pytest.raises(durable.DiskError, match=r"No space left on device.*free some space and resume"):
        train(tmp_path / "out", on_step)
    disk.full = False
    assert len(lines(tmp_path / "out")) == 3
    loop = resumed(make_loop(tmp_path / "other", steps=STEPS), tmp_path / "out")
    assert loop.state.step == 3
    loop.train()
    train(tmp_path / "whole", lambda step: None)
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")


def test_rollouts_that_wait_are_bounded_and_what_is_given_up_is_told(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 6000)
    recorder, disk.full = Recorder(tmp_path, TrainerState()), True
    for step in range(1, 31):
        recorder.rollouts(step, random_groups(1, seed=step), [None])
        recorder.metrics({"step": float(step)})
        recorder.refusals.tell(step)
        assert sum(len(data) for files in recorder._waiting.values() for data in files.values()) <= 6000
    disk.full = False
    recorder.rollouts(31, random_groups(1), [None])
    recorder.metrics({"step": 31.0})
    recorder.refusals.tell(31)
    recorder.close()
    kept = RolloutFiles(tmp_path).steps()
    assert kept == tuple(range(kept[0], 32))
    assert 3 < len(kept) < 28
    assert [line["step"] for line in lines(tmp_path)] == list(range(1, 32))
    assert f"the rollouts of {kept[0] - 1} steps had to be given up" in caplog.messages[-1]


def test_the_user_is_told_at_a_falling_rate_and_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    caplog.set_level(logging.WARNING)
    for step in range(1, 101):
        for _ in range(3):
            refusals.note(durable.DiskError("out cannot be written: full", "free some space"))
        refusals.tell(step)
    for step in (101, 102):
        refusals.tell(step)
    refusals.note(durable.DiskError("out cannot be written: full", "free some space"))
    refusals.tell(103)
    told = [int(message.split(":")[0].removeprefix("step ")) for message in caplog.messages]
    assert told == [1, 2, 4, 8, 16, 32, 64, 101, 103]
    assert "out cannot be written: full; free some space. Training goes on" in caplog.messages[0]
    assert refusals.metrics() == {"disk/refused_writes": 301.0}
    assert refusals.metrics() == {}


KEPT_STEPS = 12


def kept(keep: str, steps: int) -> list[int]:
    """By the words of the setting."""
    found = range(1, steps + 1)
    if keep == "all":
        return list(found)
    word, number = keep.split()
    if word == "last":
        return list(found)[-int(number) :]
    return sorted({1, steps, *(step for step in found if step % int(number) == 0)})


def write(run: Path, keep: str, after: tuple[int, int], until: int) -> tuple[int, int]:
    """Steps after (step, bytes of the log) up to `until`; the same pair at the end, as a checkpoint has it."""
    recorder = Recorder(run, TrainerState(step=after[0], metrics_bytes=after[1]), RolloutsSettings(keep=keep))
    for step in range(after[0] + 1, until + 1):
        groups = random_groups(2, seed=step)
        recorder.rollouts(step, groups, [None] * len(groups))
        after = step, recorder.metrics({"step": float(step)})
    recorder.close()
    return after


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("keep", ["all", "last 1", "last 3", "last 100", "every 1", "every 4", "every 5", "every 100"])
def test_what_stays_is_what_the_setting_says_after_any_kills(tmp_path: Path, keep: str) -> None:
    whole, killed, chance = tmp_path / "whole", tmp_path / "killed", random.Random(keep)
    write(whole, keep, (0, 0), KEPT_STEPS)
    assert RolloutFiles(whole).steps() == tuple(kept(keep, KEPT_STEPS))
    for _ in range(2):
        checkpoint = (0, 0)
        for path in killed.rglob("*.gz"):
            path.unlink()
        while checkpoint[0] < KEPT_STEPS:
            checkpoint = write(killed, keep, checkpoint, min(KEPT_STEPS, checkpoint[0] + chance.randint(0, 4)))
            write(killed, keep, checkpoint, min(KEPT_STEPS, checkpoint[0] + chance.randint(0, 4)))  # lost by a kill
        assert RolloutFiles(killed).steps()
        write(killed, keep, checkpoint, KEPT_STEPS)
        assert contents(killed) == contents(whole)


@pytest.mark.parametrize(
    "value",
    ["none", "last", "last 0", "every 0", "every -1", "last 3 ", "Last 3", "first 3", "last 1e3", 20, True, 2.0],
)
def test_another_value_is_refused_with_examples(value: object) -> None:
    expected = re.escape('rollouts.keep: expected "all", "last 20" or "every 10"')
    with pytest.raises(ConfigError, match=expected):
        load_config("grpo", settings={"rollouts": {"keep": value}})


def test_the_best_checkpoint_before_one_that_was_refused_stays(tmp_path: Path, disk: FullDisk) -> None:
    loop, checkpoints = make_loop(), Checkpoints(tmp_path, keep=1)

    def saved(step: int, best: int) -> set[int]:
        state = TrainerState(step=step, best_step=best)
        Refusals().allow(lambda: checkpoints.save(loop.learner, loop.outer, state, {}))
        return {number for number, _ in durable.numbered(tmp_path)}

    assert saved(1, best=1) == {1}
    disk.full = True
    assert saved(2, best=2) == {1}
    disk.full = False
    assert saved(3, best=2) == {1, 3}
    assert saved(4, best=2) == {1, 4}
    assert saved(5, best=5) == {5}
    assert saved(6, best=5) == {5, 6}
