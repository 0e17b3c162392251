"""A tracked run of the real command, killed with kill -9 and resumed: each library reads every step once."""

from pathlib import Path
from typing import Any

import pytest

from fakes.killed_runs import finish, killed_at

STEPS = list(range(1, 13))


@pytest.mark.slow
def test_a_killed_and_resumed_run_is_shown_once_in_every_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    out = tmp_path / "run"
    sizes = ["data.prompts_per_step=2", "rollout.group_size=2", "rollout.max_new_tokens=8", "checkpoint.every=5"]
    trackers = ['tracking.to=["tensorboard","wandb","trackio"]', "tracking.completions_every=3"]
    arguments = ["train", "task", *sizes, *trackers, f"run.steps={len(STEPS)}", "eval.every=0", "--out", str(out)]
    place = [
        "oncurve.trainer.saving.recorder",
        "Recorder",
        "rollouts",
        9,
    ]  # after eight steps, five in the checkpoint
    said = killed_at(place, *arguments) + finish("resume", str(out))
    assert not any(words in said for words in ("lacks", "Created new run", "Run finished"))  # the trackers' own lines
    assert tensorboard_steps(out) == STEPS
    assert wandb_steps(out) == STEPS
    assert trackio_steps(tmp_path / "trackio") == STEPS


def tensorboard_steps(out: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [event.step for event in EventAccumulator(str(out / "tensorboard")).Reload().Scalars("policy/loss")]


def wandb_steps(out: Path) -> list[int]:
    from wandb.proto.wandb_internal_pb2 import Record

    from oncurve.tracking.wandb import records

    found = []
    for file in sorted(out.glob("wandb/offline-run-*/*.wandb")):
        read: list[Any] = [Record.FromString(raw) for raw in records(file.read_bytes())]
        found += [record.history.step.num for record in read if record.HasField("history")]
    return found


def trackio_steps(folder: Path) -> list[int]:
    import sqlite3

    (database,) = folder.glob("*.db")
    with sqlite3.connect(database) as opened:
        rows = opened.execute("SELECT step FROM metrics ORDER BY id").fetchall()
    opened.close()
    return [step for (step,) in rows]
