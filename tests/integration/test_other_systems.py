"""Without the modules and calls of Linux: a sentence where Windows has none of them, a run where macOS lacks some."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WINDOWS = """
import sys
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
"""
MACOS = """
import builtins, ctypes, io, os, sys
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fadvise", "pidfd_open"):
    if hasattr(os, name):
        delattr(os, name)

def without_proc(call):
    def called(path=".", *arguments, **named):
        if str(path).startswith("/proc") and "psutil" not in sys._getframe(1).f_globals["__name__"]:  # it asks macOS
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return call(path, *arguments, **named)
    return called

builtins.open = io.open = without_proc(io.open)
os.open, os.listdir, os.scandir, os.stat = map(without_proc, (os.open, os.listdir, os.scandir, os.stat))

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Library
"""


def python(folder: Path, system: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run Python on a system with these lacks."""
    (folder / "system").mkdir()
    (folder / "system" / "sitecustomize.py").write_text(system)
    environment = os.environ | {"PYTHONPATH": str(folder / "system"), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


COMMANDS = """
import sys
from oncurve.cli import main
for words in ("--help", "runs", "train recipe.toml"):
    sys.argv = ["oncurve", *words.split()]
    try:
        main()
    except SystemExit as end:
        print("code", end.code)
import oncurve, torch
print(oncurve.group_advantages(torch.ones(2), torch.ones(2).bool(), torch.zeros(2).long()))
"""


@pytest.mark.slow
def test_windows_has_the_maths_and_gets_a_sentence_for_a_run(project: Path) -> None:
    done = python(project, WINDOWS, "-c", COMMANDS)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stdout.splitlines()[-2:] == ["code 2", "tensor([0., 0.], dtype=torch.float64)"]
    assert "On Windows, use the Linux of WSL" in done.stderr


@pytest.mark.slow
def test_a_run_on_the_cpu_needs_nothing_that_macos_lacks(project: Path) -> None:
    reward = "rewards=[{kind='python', path='reward.py:length', processes=1}]"
    done = python(project, MACOS, "-m", "oncurve", "train", "recipe.toml", reward, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert (project / "out" / "model" / "model.safetensors").is_file()
