"""The run directory: every crash of its making leaves something to go on with, and nothing in it leads out of it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from oncurve import durable
from oncurve.base.errors import LostFileError, RunDirectoryError
from oncurve.run.directory.folder import BEGINNING, FILES, FOLDERS, LOCK, MARK, RunDirectory

CRASHES = """
import itertools, os, signal, sys
from pathlib import Path
from oncurve.base.errors import RunDirectoryError
from oncurve.run.directory.folder import ROWS, RunDirectory
from oncurve import durable

COUNTED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "fcntl.flock", "os.truncate"}

def begin(path):
    run = RunDirectory.create(path, {"torch": "2"})
    durable.write_file(path / ROWS, b"{}")
    run.keep_identity({"id": "1", "settings": {}, "files": {}})
    run.keep_config("resolved = true")
    run.close()

def crash(path, at):
    calls = 0
    def hook(event, arguments):
        nonlocal calls
        if event in COUNTED and "/run" in str(arguments[0]) or event in ("os.rename", "fcntl.flock"):
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    begin(path)
    os._exit(0)

home = Path(sys.argv[1])
done = []
for existing, at in itertools.product((False, True), range(1, 200)):
    if existing in done:
        continue
    path = home / f"{existing}-{at}" / "run"
    (path if existing else path.parent).mkdir(parents=True)
    child = os.fork()
    if not child:
        crash(path, at)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        assert at > 10  # that many places to be killed at, and one more
        done.append(existing)
        continue
    if (path / "config.toml").is_file():
        RunDirectory.open(path).close()  # `oncurve resume` takes it
    else:
        begin(path)  # `oncurve train` takes it, to the same --out
    assert sorted(entry.name for entry in path.iterdir()) == sorted(
        [".lock", "config.toml", "data.jsonl", "environment.json", "run.json"]), (at, list(path.iterdir()))
print(done)
"""


@pytest.mark.slow
def test_a_start_that_is_killed_anywhere_is_taken_up_by_train_or_resume(tmp_path: Path) -> None:
    """In a folder that is made, and in an empty one that is there."""
    done = subprocess.run([sys.executable, "-c", CRASHES, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[False, True]\n"), done.stderr


def begun(path: Path) -> RunDirectory:
    run = RunDirectory.create(path, {})
    run.keep_identity({"id": "1"})
    run.keep_config("resolved = true")
    return run


@pytest.mark.parametrize(
    "others",
    [
        {"data.jsonl": b"mine"},
        {".lock": b"another tool's", "data.jsonl": b"mine"},
        {".lock": b"", "data.jsonl": b"mine"},
        {".lock": MARK, "notes.txt": b"mine"},
        {".lock": MARK, "metrics.jsonl": b""},
        {".lock": MARK, ".tmp-mine": b""},
    ],
)
def test_a_folder_that_is_not_the_beginning_of_a_run_is_not_taken(tmp_path: Path, others: dict[str, bytes]) -> None:
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RunDirectoryError, match="nothing in it is overwritten"):
        RunDirectory.create(tmp_path, {})
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == others


def test_a_run_is_held_once_and_again_when_it_was_let_go(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="in use by another oncurve run"):
        RunDirectory.open(tmp_path / "run")
    run.close()
    run.close()
    RunDirectory.open(tmp_path / "run").close()


def other_place(tmp_path: Path) -> Path:
    """A folder outside, with what a run's housekeeping would remove or cut off if it came there."""
    other = tmp_path / "other"
    for name in ("step-000009", "frozen", "step-000001"):
        (other / name).mkdir(parents=True)
        (other / name / "state.json").write_text("{}")
    (other / "step-000008.jsonl").write_text("mine")
    (other / ("0" * 64 + ".safetensors")).write_text("mine")
    (other / ".tmp-mine-1-0123abcd").write_text("mine")
    (other / "file").write_text("mine")
    return other


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LINKS = [*FILES, *FOLDERS, "checkpoints/step-000001", "checkpoints/frozen/x", "rollouts/step-000008.jsonl.gz", LOCK]


@pytest.mark.parametrize("name", LINKS)
def test_a_link_in_a_run_is_refused_and_what_it_leads_to_is_left_alone(tmp_path: Path, name: str) -> None:
    other, path = other_place(tmp_path), tmp_path / "run"
    begun(path).close()
    before = contents(other)
    (path / name).unlink(missing_ok=True)
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    target = other if name in FOLDERS or name.endswith("step-000001") else other / "file"
    (path / name).symlink_to(target)
    with pytest.raises(RunDirectoryError, match="is a symbolic link"):
        RunDirectory.open(path)
    assert contents(other) == before


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link"])
@pytest.mark.parametrize("name", [LOCK, "metrics.jsonl", "run.json", "rollouts"])
def test_what_is_not_what_its_name_says_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "run"
    begun(path).close()
    (path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path / name)
    elif kind == "folder":
        (path / name).mkdir()
    else:
        (path / name).symlink_to(tmp_path / "nowhere")
    if (name, kind) == ("rollouts", "folder"):
        RunDirectory.open(path).close()
        return
    with pytest.raises(RunDirectoryError, match=r"is a (pipe|folder|symbolic link)"):
        RunDirectory.open(path)
    assert not (tmp_path / "nowhere").exists()


def test_a_lock_is_never_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begun(path).close()
    (path / LOCK).write_bytes(b"somebody's words")
    RunDirectory.open(path).close()
    assert (path / LOCK).read_bytes() == b"somebody's words"
    assert stat.S_ISREG((path / LOCK).lstat().st_mode)


HOUSEKEEPING = {
    "prune": lambda folder: durable.prune(folder, 1),
    "discard": lambda folder: durable.discard(folder, []),
    "sweep": durable.sweep,
}


@pytest.mark.parametrize("housekeeping", HOUSEKEEPING)
def test_housekeeping_does_not_go_behind_a_link(tmp_path: Path, housekeeping: str) -> None:
    other, link = other_place(tmp_path), tmp_path / "checkpoints"
    link.symlink_to(other)
    before = contents(other)
    with pytest.raises(durable.StorageError, match="is a symbolic link"):
        HOUSEKEEPING[housekeeping](link)
    assert contents(other) == before


def test_what_killed_writers_left_is_swept_when_a_run_is_taken_up_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begun(path).close()
    ours = [".tmp-report.html-12-0123abcd", "checkpoints/.tmp-step-000001-12-0123abcd", ".saving-abcd_123",
            "rollouts/.tmp-step-000001.jsonl-7-00000000", "incidents/.tmp-step-000001-0-7-00000000"]  # fmt: skip
    theirs = [".tmp-notes", "rollouts/.tmpfile", "checkpoints/keep-me"]
    for name in (*ours, *theirs):
        (path / name).mkdir(parents=True)
        (path / name / "file").write_text("x")
    (path / "checkpoints/frozen").mkdir()
    (path / "checkpoints/frozen/.tmp-frozen-3-0123abcd").write_text("x")
    RunDirectory.open(path).close()
    assert not any((path / name).exists() for name in (*ours, "checkpoints/frozen/.tmp-frozen-3-0123abcd"))
    assert all((path / name / "file").exists() for name in theirs)
    assert {name for name in BEGINNING if not name.endswith("data.jsonl")} <= {entry.name for entry in path.iterdir()}


CHANGES = """
import os, signal, sys
from pathlib import Path
from oncurve.run.directory.folder import RunDirectory

def settings(number):
    return {"id": "1", "settings": {"learner.learning_rate": number}, "files": {}}

def at_most(path, calls):
    def hook(event, arguments):
        nonlocal calls
        if event in ("open", "os.rename") and "/run" in str(arguments[0]) + str(arguments[-1]):
            calls -= 1
            if not calls:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

home, seen = Path(sys.argv[1]), set()
for at in range(1, 200):
    path = home / str(at) / "run"
    run = RunDirectory.create(path, {})
    run.keep_identity(settings(1))
    run.keep_config("1")
    run.close()
    child = os.fork()
    if not child:
        at_most(path, at)
        run = RunDirectory.open(path)
        run.change(2, "2", settings(2), ["learner.learning_rate"])
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    for _ in range(2):
        with RunDirectory.open(path) as run:
            number = int((path / "config.toml").read_text())
            assert run.identity() == settings(number), (at, number)
            run.change(2, "2", settings(2), ["the same command"])
            seen.add(number)
    if not killed:
        break
assert at > 8 and seen == {1, 2}
print("whole")
"""


def test_a_change_that_is_killed_anywhere_leaves_settings_and_identity_of_one_run(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CHANGES, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_a_folder_that_is_replaced_while_the_model_loads_is_not_taken_for_the_run(tmp_path: Path) -> None:
    with begun(tmp_path / "run") as run:
        run.check_kept()
        (tmp_path / "run").rename(tmp_path / "there")
        shutil.copytree(tmp_path / "there", tmp_path / "run")
        with pytest.raises(LostFileError, match="after it was opened"):
            run.check_kept()
