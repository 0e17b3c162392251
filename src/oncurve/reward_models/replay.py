"""The replay buffer: every example that a run has made for its reward model, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oncurve import durable
from oncurve.base.errors import CheckpointError
from oncurve.randomness import permutation
from oncurve.reward_models.examples import Example, example_from_json, example_to_json

FILE = "replay.jsonl"


class Replay:
    """Examples by iteration, for training and held out; iteration 0 is what the reward model had learned from before.

    In a run directory (`folder`) they are a log, `replay.jsonl`, whose length is part of a checkpoint. Without one they
    are kept in memory alone.
    """

    def __init__(self, history: Sequence[Example] = ()) -> None:
        self.folder: Path | None = None
        self._history = list(history)
        self._kept: list[tuple[int, bool, Example]] = []
        self._log: durable.AppendLog | None = None
        self._closed = False

    def open(self, offset: int = 0, digest: str | None = None) -> None:
        """Begin a log, or continue the one there after its first `offset` bytes.

        Raises CheckpointError: the log is shorter, or the sha256 of these bytes is not `digest`.
        """
        if self.folder is None:
            return
        path = self.folder / FILE
        self._log = durable.AppendLog(path, offset=offset)
        if digest is not None and self.digest() != digest:
            raise CheckpointError(f"{path} has been changed since the checkpoint: its sha256 does not fit")
        self._kept = [
            (int(record["iteration"]), bool(record["held_out"]), example_from_json(record))
            for record in durable.read_log(path)
        ]

    def add(self, iteration: int, examples: Sequence[Example], held_out: bool) -> None:
        """Keep examples of an iteration, from 1."""
        if self._log is None and not self._closed:
            self.open()
        for example in examples:
            self._kept.append((iteration, held_out, example))
            if self._log is not None:
                self._log.append({"iteration": iteration, "held_out": held_out, **example_to_json(example)})

    def of(self, iteration: int, held_out: bool = False) -> list[Example]:
        """Return the examples of one iteration."""
        return [example for number, held, example in self._kept if number == iteration and held == held_out]

    def earlier(self, iteration: int) -> list[Example]:
        """Return all examples to train on from before an iteration."""
        return self._history + [example for number, held, example in self._kept if number < iteration and not held]

    def replayed(self, iteration: int, share: float, seed: int) -> list[Example]:
        """Return `share` of all earlier examples, rounded, drawn without repetition: a function of (seed,
        iteration).
        """
        earlier = self.earlier(iteration)
        count = round(share * len(earlier))
        return [earlier[index] for index in sorted(permutation(seed, iteration, len(earlier))[:count].tolist())]

    def digest(self) -> str:
        """Return the sha256 of the log so far, by which a resume sees that it has been changed; "" without a log."""
        if self._log is None:
            return ""
        self._log.sync()
        return durable.sha256(self._log.path)

    def stored_bytes(self) -> int:
        """Return the length of the log, on the disk when this returns; 0 without one."""
        if self._log is None:
            return 0
        self._log.sync()
        return self._log.offset

    def close(self) -> None:
        """Close the log; what is added later is kept in memory alone."""
        self._closed = True
        if self._log is not None:
            self._log.close()
            self._log = None
