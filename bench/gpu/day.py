"""A card for half an hour: three parts of at most 9.5 minutes, which waste no minute of it.

`python -m bench.gpu day A --out DIR` asks whether it is right. Part B asks how fast it is, part C how fast others are.

A part is a list of sections. Each runs in a process of its own, so that a fault of one leaves the others their device.
Each has its seconds, and one that begins too late is left out. Every figure is a line of `DIR/A.jsonl`, written as soon
as it is known. What is killed leaves what it has found.

`--rehearse` runs all of it on the CPU at toy shapes; its timings mean nothing. `--only a,b` runs some sections.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

MINUTES = 9.5
PARTS = {"A": "bench.gpu.correct", "B": "bench.gpu.speed", "C": "bench.gpu.peers"}


@dataclass(frozen=True)
class Place:
    """The place of a section; `toy`: it is rehearsed, so small shapes do. `out` is a folder for its files."""

    device: torch.device
    toy: bool
    out: Path
    file: Path
    section: str
    started: float
    expected: Mapping[str, Any]

    def note(self, figure: str, value: Any) -> None:
        """Write down a figure, and what was expected of it, where anything was."""
        known = {"expected": self.expected[figure]} if figure in self.expected else {}
        write(
            self.file, self.section, figure=figure, value=value, **known, at=round(time.monotonic() - self.started, 2)
        )


@dataclass(frozen=True)
class Section:
    """Figures that belong together, the most seconds they take, and what is expected of them on an H100, by name."""

    run: Callable[[Place], None]
    seconds: float
    expected: Mapping[str, Any] = field(default_factory=dict)


def main(arguments: list[str]) -> int:
    """Run a part, or a section of one in this process. Returns 0: all sections ended, 1: some did not, 2: no GPU."""
    parser = argparse.ArgumentParser(prog="bench.gpu day", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the figures")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, at toy shapes")
    parser.add_argument("--only", help="these sections, separated by commas")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the most that the part takes")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not chosen.rehearse:
        print("bench.gpu: torch sees no CUDA device (--rehearse runs it on the CPU)", file=sys.stderr)
        return 2
    sections: dict[str, Section] = importlib.import_module(PARTS[chosen.part]).SECTIONS
    file = chosen.out / f"{chosen.part}.jsonl"
    if chosen.section is not None:
        device = torch.device("cpu" if chosen.rehearse else "cuda")
        section = sections[chosen.section]
        known = {} if chosen.rehearse else section.expected
        begun = time.monotonic()
        return _here(section, Place(device, chosen.rehearse, chosen.out, file, chosen.section, begun, known))
    names = list(sections) if chosen.only is None else chosen.only.split(",")
    if unknown := set(names) - set(sections):
        parser.error(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * chosen.minutes
    ended = [_apart(arguments, file, name, sections[name].seconds, end) for name in names]
    return 0 if all(ended) else 1


def write(file: Path, section: str, **values: Any) -> None:
    """Write a line."""
    line = json.dumps({"section": section, **values})
    print(line[:300], flush=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(line + "\n")


def _here(section: Section, place: Place) -> int:
    """Run a section in this process."""
    try:
        section.run(place)
    except Exception as error:  # whatever it is, it is the result
        said = f"{type(error).__name__}: {error}"[:2000]
        write(place.file, place.section, error=said, trace=traceback.format_exc()[-3000:])
        return 1
    return 0


def _apart(arguments: list[str], file: Path, name: str, seconds: float, end: float) -> bool:
    """Run a section in a process of its own, for its seconds and no longer than to the end. Returns whether it
    ended well.
    """
    started = time.monotonic()
    if (left := min(seconds, end - started)) < min(10, seconds):
        write(file, name, skipped="no time is left")
        return False
    command = [sys.executable, "-m", "bench.gpu", "day", *arguments, "--section", name]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(left)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _kill(process)
    write(file, name, ended=code, seconds=round(time.monotonic() - started, 1))
    return code == 0


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a section with all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
