"""The parent's side of a worker: start it, request steps, end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.cases import Case

__all__ = ["BenchError", "NoRoomError", "Worker"]

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "bench" / ".cache" / "logs"


class BenchError(Exception):
    """An error that the user can fix."""


class NoRoomError(BenchError):
    """There is too little memory for a case."""


class Worker:
    """A fresh process that runs one case. A context manager, which always ends the process.

        with Worker(case) as worker:
            worker.step()                  # warm-up
            report = worker.step()         # {"seconds": 1.3, "phases": {...}, ...}
            peak = worker.end()            # bytes

    `about` is the description that the system gave when it was ready.
    """

    def __init__(self, case: Case) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.case = case
        self.log = LOGS / f"{case.system} {case.model} {case.lengths}.log"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
        environment["OMP_NUM_THREADS"] = str(case.threads)
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.systems.worker", case.to_json()],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            self.about = self._answer()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def step(self) -> dict[str, Any]:
        """One training step, as `worker.StepReport` has it."""
        self._say("step")
        return self._answer()

    def end(self) -> int:
        """End the process in order. Returns its peak memory in bytes."""
        self._say("end")
        peak = int(self._answer()["peak_bytes"])
        self._process.wait(timeout=60)
        return peak

    def kill(self) -> None:
        """Kill the process, if it runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """Processor time that the process and all its threads have used so far (Linux)."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _gone(self) -> BenchError:
        code = self._process.wait()
        why = "killed, most likely for memory" if code == -9 else f"exit code {code}"
        last = self.log.read_text(errors="replace").strip().splitlines()[-3:]
        return BenchError(
            f"{self.case.system} on {self.case.model} ended ({why}); {self.log} ends:\n" + "\n".join(last)
        )
