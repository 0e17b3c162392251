"""Each built-in tracker writes real files, and its own library reads every step from them once."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.config import load_config
from oncurve.run import check_tracking
from oncurve.tracking import TRACKER_KINDS, CompletionRow, TrackedRun, TrackingSettings, kinds
from oncurve.tracking.follower import Follower
from oncurve.tracking.tensorboard import FOLDER
from oncurve.tracking.wandb import last_step, records

ID = "0123456789abcdef"
LONG = "é🎲" * 30_000  # longer than a block of wandb's files
ROWS = (
    CompletionRow("2+2=", "4|`5`\n\x1b[2J", 1.0, 0.7, "math=1", 2, "eos"),
    CompletionRow("é", "", None, None, "", 0, "stop"),
)
Points = list[tuple[int, float]]


@pytest.fixture(autouse=True)
def _on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setenv("WANDB_SILENT", "true")


def tensorboard_points(folder: Path, key: str) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / FOLDER)).Reload()
    return [(event.step, event.value) for event in events.Scalars(key)]


def wandb_rows(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for raw in records(file.read_bytes()):
            record = Record.FromString(raw)
            if record.HasField("history"):
                items = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                rows.append((record.history.step.num, items))
    return rows


def wandb_points(folder: Path, key: str) -> Points:
    return [(step, items[key]) for step, items in wandb_rows(folder)]


def trackio_rows(folder: Path) -> list[dict[str, Any]]:
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = Api().runs("tests")
    rows: list[dict[str, Any]] = SQLiteStorage.get_logs("tests", run.name, run_id=run.id)
    return rows


def trackio_points(folder: Path, key: str) -> Points:
    return [(row["step"], row[key]) for row in trackio_rows(folder)]


READERS: dict[str, Callable[[Path, str], Points]] = {
    "tensorboard": tensorboard_points,
    "wandb": wandb_points,
    "trackio": trackio_points,
}


def write_log(folder: Path, values: dict[int, float]) -> Path:
    log = folder / "metrics.jsonl"
    lines = [json.dumps({"step": step, "reward/mean": value, "policy/kl": 0.5}) for step, value in values.items()]
    log.write_text("".join(line + "\n" for line in lines))
    return log


def follow(kind: str, folder: Path, values: dict[int, float], begun_at: int = 0) -> Follower:
    """A process that begins at a checkpoint, trains the rest of `values`, and ends in order."""
    folder.mkdir(exist_ok=True)
    settings = TrackingSettings(to=(kind,), project="tests", tags=("one", "two"), mode="offline")
    run = TrackedRun(
        ID, "my run", {"learner": {"learning_rate": 1e-6}, "data": {"t": LONG}}, folder, begun_at, settings
    )
    follower = Follower(kind, TRACKER_KINDS[kind], run, write_log(folder, values))
    for step in values:
        follower.recorded(step, ROWS if step % 4 == 0 else ())
    follower.end()
    assert follower.wait(60) is None, follower.news
    for _ in range(600):  # wandb's own process may write the last block a moment after `finish`
        if kind != "wandb" or last_step(folder, ID) >= max(values):
            return follower
        time.sleep(0.05)
    raise AssertionError("the last step is not in wandb's files")


def test_every_tracker_has_its_reader_here() -> None:
    assert READERS.keys() == TRACKER_KINDS.keys()


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.slow
def test_every_step_is_shown_once_also_those_that_come_again(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    follow(kind, folder, {step: step / 8 for step in range(1, 8)})
    assert READERS[kind](folder, "reward/mean") == [(step, step / 8) for step in range(1, 8)]
    again = {step: step / 8 if step <= 5 else step / 4 for step in range(1, 10)}  # from the checkpoint of step 5
    follow(kind, folder, again, begun_at=5)
    points = READERS[kind](folder, "reward/mean")
    assert [step for step, _ in points] == list(range(1, 10))
    assert points[:5] == [(step, step / 8) for step in range(1, 6)]
    assert points[7:] == [(8, 2.0), (9, 2.25)]
    taken_back = kind == "tensorboard"  # the others keep what they have
    assert points[5:7] == ([(6, 1.5), (7, 1.75)] if taken_back else [(6, 0.75), (7, 0.875)])


@pytest.mark.parametrize("kind", READERS)
def test_steps_that_a_killed_process_had_not_written_yet_are_shown_from_the_log(kind: str, tmp_path: Path) -> None:
    follow(kind, tmp_path / "run", {1: 0.5, 2: 0.25})
    follow(kind, tmp_path / "run", {step: step * 0.5 for step in range(1, 7)}, begun_at=6)
    assert [step for step, _ in READERS[kind](tmp_path / "run", "policy/kl")] == [1, 2, 3, 4, 5, 6]


def test_tensorboard_has_configuration_and_completions_as_text(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    follow("tensorboard", tmp_path / "run", dict.fromkeys(range(1, 9), 0.0))
    events = EventAccumulator(str(tmp_path / "run" / FOLDER)).Reload()
    assert [event.step for event in events.Tensors("completions/text_summary")] == [4, 8]
    table = events.Tensors("completions/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| 2+2= | 4\\|\\`5\\`⏎\\\\x1b\\[2J | 1 | 0.7 | math=1 | 2 | eos |" in table
    assert "| é |  |  |  |  | 0 | stop |" in table
    config = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"learning_rate": 1e-06' in config
    assert '"one"' in config
    assert events.summary_metadata["completions/text_summary"].plugin_data.plugin_name == "text"


def test_wandb_has_configuration_tags_and_completions(tmp_path: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    follow("wandb", tmp_path / "run", dict.fromkeys(range(1, 6), 0.0))
    (file,) = (tmp_path / "run").glob(f"wandb/offline-run-*-{ID}/run-{ID}.wandb")
    assert last_step(tmp_path / "run", ID) == 5
    assert last_step(tmp_path / "run", "another") == -1
    (begun,) = [record.run for record in map(Record.FromString, records(file.read_bytes())) if record.HasField("run")]
    assert (begun.run_id, begun.display_name, begun.project, list(begun.tags)) == (
        ID,
        "my run",
        "tests",
        ["one", "two"],
    )
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["learner"] == {"learning_rate": 1e-6}
    assert config["data"] == {"t": LONG}
    assert [step for step, items in wandb_rows(tmp_path / "run") if "completions/nrows" in items] == [4]
    (table,) = (tmp_path / "run").glob("wandb/offline-run-*/files/media/table/completions_4_*.table.json")
    assert json.loads(table.read_text())["data"] == [list(row) for row in ROWS]


TRACKER = """
class Mine:
    def begin(self, run): return 0
    def groups(self, step, rows): pass
    def metrics(self, step, metrics): pass
    def close(self): pass

class Half:
    def begin(self, run): return 0

class Asks(Mine):
    def __init__(self, url): pass

def function(): pass
"""


@pytest.mark.parametrize(("said", "expected"), table("trackers", "a_wrong_tracker_is_refused_by_its_name"))
def test_a_wrong_tracker_is_refused_by_its_name(
    said: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(TRACKER)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"tracking\.to") as refused:
        check_tracking(load_config("grpo", [said])[0])
    assert expected in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "trackio"):
        with pytest.raises(ConfigError, match=rf"{name} is not installed: pip install 'oncurve\[{name}\]'"):
            check_tracking(load_config("grpo", [f'tracking.to=["{name}"]'])[0])


def test_wandb_online_needs_a_key_and_offline_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="wandb login"):
        check_tracking(load_config("grpo", ['tracking.to=["wandb"]'])[0])
    check_tracking(load_config("grpo", ['tracking.to=["wandb"]', "tracking.mode=offline"])[0])
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_tracking(load_config("grpo", ['tracking.to=["wandb"]'])[0])
