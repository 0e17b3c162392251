"""A worker's side of a program: it runs for one row, calls the policy at an address, and returns its reward.

    def run(base_url, api_key, row): ...              # sync or async; a number is the reward of the episode

A function is given what it names: `base_url`, `api_key`, `model`, `row` (all columns, and the `prompt`), `prompt`, and
columns by their names. A command finds the same in its environment: OPENAI_BASE_URL, OPENAI_API_KEY, ONCURVE_ROW.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.environments.play import number, seed_all, taken

MODEL = "policy"
_LONGEST_LINE = 1 << 16


class ProgramPlayer:
    """Runs a program for one episode per item: `player({"address", "key", "seed", "row", "prompt"})`."""

    about: Mapping[str, Any] = {"tools": (), "answers": False}

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return the program's reward as `outcome`; None: it gives none."""
        from oncurve.base.web import ask  # here: it takes long to import

        row = {"prompt": item["prompt"], **item["row"]}
        key = f"{item['key']}.{os.getpid()}"  # by which the run knows one that runs again
        os.environ.update(OPENAI_BASE_URL=item["address"], OPENAI_API_KEY=key)
        sent = {"Authorization": f"Bearer {key}"}
        ask("POST", f"{item['address']}/begun", b"0", sent, seconds=60.0, proxies=False)  # its time begins
        seed_all(item["seed"])
        given = {**row, "row": row, "base_url": item["address"], "api_key": key, "model": MODEL}
        value = self._run(**taken(self._run, given))
        if inspect.iscoroutine(value):
            import asyncio

            value = asyncio.run(value)  # a program has an event loop of its own, of which nothing is left
        return {"outcome": number(value)}


def command_runner(command: Sequence[str], folder: Path) -> Callable[..., float | None]:
    """Return a program that runs a command in `folder`; the last line of its output is its reward, if it is a number.

    A command "python" is the interpreter of this process.
    """

    def run(row: Mapping[str, Any]) -> float | None:
        called = [sys.executable if command[0] == "python" else command[0], *command[1:]]
        environment = {**os.environ, "ONCURVE_ROW": json.dumps(row, default=str)}
        with tempfile.TemporaryFile() as output:
            try:
                ended = subprocess.run(called, stdin=subprocess.DEVNULL, stdout=output, cwd=folder, env=environment)
            except OSError as error:
                raise RuntimeError(f"the command cannot be started: {error}") from None
            if ended.returncode:
                raise RuntimeError(f"the command ended with exit code {ended.returncode}")
            output.seek(max(0, output.seek(0, os.SEEK_END) - _LONGEST_LINE))
            lines = output.read().decode(errors="replace").strip().split("\n")
        try:
            return float(lines[-1])
        except ValueError:
            return None

    return run
