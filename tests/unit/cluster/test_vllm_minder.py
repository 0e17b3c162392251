"""The process between a worker and its vLLM server: nothing outlives the worker, and the first cause is told."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import oncurve
from fakes.started import start_process
from fakes.tables import table
from fakes.waiting import gone, until
from oncurve.processes import Minder
from oncurve.processes.minder import first_cause

WITH_AN_ENGINE = ["sh", "-c", 'sleep 600 & echo $! > "$0/engine"; wait']
"""A server that starts another process, as vLLM does; its id is in a file."""


def engine_of(folder: Path) -> psutil.Process:
    file = folder / "engine"
    until(lambda: file.is_file() and file.read_text().endswith("\n"))
    return psutil.Process(int(file.read_text()))


def start_with_an_engine(minder: Minder) -> psutil.Process:
    minder.start([*WITH_AN_ENGINE, str(minder.folder)])
    return engine_of(minder.folder)


def test_its_folder_is_in_memory_where_that_has_room_for_twice_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("oncurve.processes.minder.IN_MEMORY", str(tmp_path))
    for nbytes, there in ((1, True), (shutil.disk_usage(tmp_path).total, False)):
        minder = Minder({}, nbytes)
        try:
            assert minder.folder.is_relative_to(tmp_path) == there
            assert minder.folder.stat().st_mode & 0o077 == 0
        finally:
            minder.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_that_is_killed_leaves_nothing(stopped: bool) -> None:
    code = (
        f"import sys, time; sys.path.append({str(Path(oncurve.__file__).parents[1])!r})\n"
        "from oncurve.processes import Minder\n"
        "minder = Minder({}); minder.start([*sys.argv[1:], str(minder.folder)])\n"
        "print(minder.folder, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, *WITH_AN_ENGINE]
    worker = start_process(*command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    folder = Path(worker.stdout.readline().strip())
    engine = engine_of(folder)
    if stopped:
        engine.parent().suspend()
    os.killpg(worker.pid, signal.SIGKILL)
    until(lambda: gone(engine.pid))
    until(lambda: not folder.exists())


def test_a_signal_to_all_processes_of_a_job_leaves_the_minder_to_clear_up() -> None:
    minder = Minder({})
    engine = start_with_an_engine(minder)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(minder._process.pid, number)
    assert minder.ending(0.5) == ""
    minder.close()
    until(lambda: gone(engine.pid))
    assert not minder.folder.exists()


def test_a_server_that_ends_takes_what_it_has_started_with_it_and_its_ending_is_told() -> None:
    minder = Minder({})
    engine = start_with_an_engine(minder)
    engine.parent().send_signal(signal.SIGKILL)
    assert minder.ending(20.0) == "the vLLM server was killed by signal SIGKILL"
    until(lambda: gone(engine.pid))
    assert not minder.folder.exists()
    minder.close()


@pytest.mark.parametrize(("command", "words"), table("vllm_minder", "endings"))
def test_how_a_server_ended_and_what_it_said(command: list[str], words: str) -> None:
    minder = Minder({})
    minder.start(command)
    try:
        assert words in minder.ending(20.0)
    finally:
        minder.close()


@pytest.mark.parametrize(("log", "cause"), table("vllm_minder", "the_first_error_of_a_log_is_its_cause"))
def test_the_first_error_of_a_log_is_its_cause(log: str, cause: str) -> None:
    assert first_cause(log) == cause
