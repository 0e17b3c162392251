"""One system in its own process: `python -m bench.systems.worker CASE` answers commands, one JSON line each.

    <- {"ready": true, ...}                        once it is ready for a step
    -> step        <- {"seconds": ..., ...}        see `StepReport`
    -> end         <- {"peak_bytes": ...}          and the process ends

While it waits it sleeps in a read, so that the other system has both cores. What libraries print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from bench.cases import SYSTEMS, Case

__all__ = ["Channel", "StepReport", "main"]


@dataclass
class StepReport:
    """What one step took. A phase or count that cannot be observed in the system is absent.

    seconds        of the whole step
    phases         seconds of prefill, decode, reward, reference, train, optimizer
    executed       token positions that the network processed, by pass: prefill, decode, reference, train
    decode_steps   calls of the network with one token per row
    lengths        tokens of each completion, in order
    mismatch       mean |log-prob of the sampler - of the learner|, where the system reports it
    """

    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    executed: dict[str, int] = field(default_factory=dict)
    decode_steps: int = 0
    lengths: list[int] = field(default_factory=list)
    mismatch: float | None = None


class Channel:
    """The worker's end of the pipes."""

    def __init__(self, commands: TextIO, answers: TextIO) -> None:
        self._commands = commands
        self._answers = answers

    def ready(self, **about: Any) -> None:
        """Report that the worker is ready; `about` is kept with the results."""
        self._answer({"ready": True, **about})

    def wants_step(self) -> bool:
        """Sleep until the next command: True for a step, False for the end."""
        return self._commands.readline().strip() == "step"

    def done(self, report: StepReport) -> None:
        """Answer a step."""
        self._answer(asdict(report))

    def ended(self) -> None:
        """The last answer."""
        self._answer({"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})

    def _answer(self, table: dict[str, Any]) -> None:
        self._answers.write(json.dumps(table) + "\n")
        self._answers.flush()


def main() -> None:
    """Serve the case of the command line until the parent ends it or is gone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    case = Case.from_json(sys.argv[1])
    import torch

    torch.set_num_threads(case.threads)
    channel = Channel(sys.stdin, answers)
    importlib.import_module(SYSTEMS[case.system].module).serve(case, channel)
    channel.ended()
    os._exit(0)  # threads of a library must not keep the process


if __name__ == "__main__":
    main()
