"""The run directory's growing part: metrics, groups in `rollouts/`, incidents; and what a full disk refuses."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from oncurve import durable
from oncurve.components import Component
from oncurve.durable import DiskError
from oncurve.report import TOKENS, EvaluationFiles, Pieces, RolloutFiles, group_record, packed_tokens
from oncurve.trainer.state import TrainerState
from oncurve.types import RAGGED, Group, TrainBatch, axes_of

log = logging.getLogger("oncurve.trainer")


class Refusals:
    """The writes of a run that a full disk has refused.

    A step of which something was refused is told about if it is the first, second, fourth, eighth, ... in a row, and
    so is the first one after them of which nothing was.

    waiting    a checkpoint was refused, and none has been written since
    given_up   steps whose rollouts had to be dropped while the disk refused
    """

    def __init__(self) -> None:
        self.waiting = False
        self.given_up = 0
        self._last: DiskError | None = None
        self._untold = self._unmeasured = self._in_a_row = 0

    def note(self, error: DiskError) -> None:
        """Count a write that was refused."""
        self._last = error
        self._untold += 1
        self._unmeasured += 1

    def allow(self, write: Callable[[], object]) -> bool:
        """Return whether the disk took what `write` writes."""
        try:
            write()
        except DiskError as error:
            self.note(error)
            return False
        return True

    def checkpoint(self, save: Callable[[], object]) -> None:
        """Write a checkpoint; where the disk refuses it, it is `waiting` from now on."""
        self.waiting = not self.allow(save)

    def metrics(self) -> dict[str, float]:
        """Return the writes that were refused since the last call, by declared key; empty where there were none."""
        count, self._unmeasured = self._unmeasured, 0
        return {"disk/refused_writes": float(count)} if count else {}

    def tell(self, step: int) -> None:
        """Tell about what was refused since the last call, after `step` steps."""
        if self._untold and self._last is not None:
            self._untold = 0
            self._in_a_row += 1
            if self._in_a_row & (self._in_a_row - 1) == 0:
                log.warning(
                    "step %d: %s; %s. Training goes on, and what is missing is written once the disk takes it",
                    step,
                    self._last.reason,
                    self._last.advice,
                )
        elif self._in_a_row:
            self._in_a_row = 0
            lost = f"; the rollouts of {self.given_up} steps had to be given up" if self.given_up else ""
            log.warning("step %d: the disk takes what is written again%s", step, lost)
            self.given_up = 0


_FORM = re.compile(r"(last|every) ([1-9]\d{0,8})")


def _checked(value: Any) -> Any:
    if value == "all" or (isinstance(value, str) and _FORM.fullmatch(value)):
        return value
    raise ValueError('expected "all", "last 20" or "every 10", with a number of steps from 1')


class RolloutsSettings(Component):
    """The groups of the steps that stay in `rollouts/` of the run's directory."""

    keep: Annotated[str, BeforeValidator(_checked)] = "all"
    """The steps whose groups stay: "all"; "last 20", the newest 20; "every 10", the first, every tenth and the newest.
    Metrics, resume and export do not depend on it."""

    tokens_every: Annotated[int, Field(ge=0)] = 12
    """Step 1 and every so many steps, if their groups stay, record each token's log-prob before and after the updates,
    its entropy and KL; 0: none does. Costs one forward pass or two, and changes no bit of the training."""

    def measures(self, step: int) -> bool:
        """Return whether the tokens of `step` are measured: its groups stay when the next step ends, too."""
        due = self.tokens_every > 0 and (step == 1 or step % self.tokens_every == 0)
        return due and self.keeps(step, step + 1)

    def keeps(self, step: int, newest: int) -> bool:
        """Return whether the groups of `step` stay after the step `newest`; those of later steps do."""
        match = _FORM.fullmatch(self.keep)
        if match is None or step >= newest:
            return True
        count = int(match[2])
        return step > newest - count if match[1] == "last" else step == 1 or step % count == 0


MOST_WAITING_BYTES = 64 << 20
"""The most bytes of rollouts that wait in memory for a disk that is full; of more the oldest are given up."""


class Recorder:
    """Writes the files of each step. Opening it at a state removes what later steps had written.

    `notes`: messages about existing files. Raises StorageError: `rollouts/` is a link.

    rollouts/step-000012.jsonl.gz   one group per line: prompt, completions, token ids, log-probs, rewards, advantages
    rollouts/step-000012.index.gz   one row per group, by which groups are listed and read one at a time
    rollouts/step-000012.tokens     texts of the tokens, and their numbers before and after the updates
    evaluations/step-000012.json.gz the result of every held-out problem in the evaluation after the step
    metrics.jsonl                   one line per step, declared keys
    incidents/step-000012-0/        the batch of an update that was skipped, as tensors

    A thread makes the text of a step's groups and compresses it while the step's updates run. This thread writes it,
    at the latest with the step's line or when the recorder is closed: the groups of a step that has failed are there.

    `retention` names the steps whose groups stay. Those of a step go when the line of a later one is written.

    `tokenizer` gives the tokens' texts; without one there are none. `verifier` is the name of the reward that says
    which completions are right.

    A full disk does not end a step: `refusals` counts what it refuses. Lines of metrics wait in memory until they can
    be written, so do evaluations, rollouts up to `MOST_WAITING_BYTES`, and the batch of a skipped update is left out.
    """

    def __init__(
        self,
        directory: Path,
        state: TrainerState,
        retention: RolloutsSettings | None = None,
        refusals: Refusals | None = None,
        tokenizer: Any = None,
        verifier: str | None = None,
    ) -> None:
        self.directory = directory
        self.refusals = refusals or Refusals()
        self.retention = retention or RolloutsSettings()
        self._pieces = None if tokenizer is None else Pieces(tokenizer.decode)
        self._verifier = verifier
        self._files = RolloutFiles(directory)
        self._evaluations = EvaluationFiles(directory)
        durable.own_folder(self._files.folder)
        self._evaluations.remove_after(state.step)
        self._kept = set(self._files.steps())
        self._making: tuple[int, Future[dict[str, bytes]]] | None = None
        self._ends, self._texts, self._numbers = list[int](), dict[str, str](), dict[str, Tensor]()
        self._waiting: dict[int, dict[str, bytes]] = {}
        self._unwritten: dict[int, Sequence[Mapping[str, Any]]] = {}
        self._unsynced: set[int] = set()
        self._remove({step for step in self._kept if step > state.step})
        self._retain(state.step)
        self._log, self.notes = durable.AppendLog.reopened(directory / "metrics.jsonl", state.metrics_bytes)

    def rollouts(self, step: int, groups: Sequence[Group], advantages: Sequence[Tensor | None]) -> None:
        """Begin to write every group of a step, with the advantages of its completions; None where it was left out."""
        self.check()
        self.finish_rollouts()
        pairs = list(zip(groups, advantages, strict=True))
        thread = ThreadPoolExecutor(1, "oncurve-rollouts")
        head = {"step": step} | ({} if self._verifier is None else {"verifier": self._verifier})
        self._making = step, thread.submit(_content, head, pairs)
        thread.shutdown(wait=False)  # it ends once it is done
        ids = [completion.ids for group in groups for completion in group.completions]
        self._texts = {} if self._pieces is None else self._pieces.of(ids)
        self._ends = list(accumulate(sum(len(each.ids) for each in group.completions) for group in groups))
        self._numbers = {}

    def measures(self, step: int | None = None) -> bool:
        """Return whether numbers of a step's tokens are wanted. `step` None: the one whose writing was begun."""
        step = self._making[0] if step is None and self._making is not None else step
        return step is not None and self.retention.measures(step)

    def tokens(self, numbers: Mapping[str, Tensor]) -> None:
        """Take numbers of the tokens of the groups whose writing was begun, `(N,)` by name, in their order."""
        self._numbers |= numbers

    def evaluation(self, step: int, problems: Sequence[Mapping[str, Any]]) -> None:
        """Write the results of the held-out problems after `step`; where the disk is full they wait."""
        self.check()
        self._unwritten[step] = problems
        self.refusals.allow(self._write_waiting)

    def finish_rollouts(self) -> None:
        """Wait for the groups whose writing was begun, and write them. Raises StorageError, unless the disk is full."""
        if self._making is None:
            return
        step, content = self._making
        wait([content])
        self._making = None
        self.check()  # a folder that is lost is not made again
        tokens = packed_tokens(self._ends, self._texts, {name: each.numpy() for name, each in self._numbers.items()})
        self._waiting[step] = content.result(timeout=0) | {TOKENS: tokens}
        self._kept.add(step)
        try:
            self.refusals.allow(self._write_waiting)
        except durable.StorageError:  # it will not pass: the last checkpoint is written without these groups
            self._waiting.clear()
            raise
        while sum(len(data) for files in self._waiting.values() for data in files.values()) > MOST_WAITING_BYTES:
            self._remove({min(self._waiting)})
            self.refusals.given_up += 1

    def metrics(self, metrics: Mapping[str, float]) -> int:
        """Write one step's line; returns the length of `metrics.jsonl` in bytes, lines that wait included."""
        self.finish_rollouts()
        self._log.append(dict(metrics))
        if self._log.refused is not None:
            self.refusals.note(self._log.refused)
        self._retain(int(metrics["step"]))
        return self._log.offset

    def incident(self, step: int, update: int, batch: TrainBatch, reason: str) -> Path | None:
        """Save the batch of a skipped update under `incidents/`; None where the disk is full."""
        self.check()
        tensors: dict[str, Tensor] = {}
        for name, axes in axes_of(batch).items():
            value = getattr(batch, name)
            if value is None:
                continue
            if axes in RAGGED:  # one after another, and how long each is
                tensors[f"{name}.lengths"] = torch.tensor([len(part) for part in value])
                value = torch.cat(value)
            tensors[name] = value.detach().to("cpu").contiguous()
        path = self.directory / "incidents" / f"step-{step:06d}-{update}"
        if path.exists():
            return path
        files: dict[str, bytes | dict[str, Tensor]] = {
            "batch.safetensors": tensors,
            "reason.txt": reason.encode("utf-8", "replace"),
        }
        return path if self.refusals.allow(lambda: durable.write_directory(path, files)) else None

    def check(self) -> None:
        """Raises LostFileError: the run's directory was deleted, moved or replaced by another one."""
        self._log.check()

    def sync(self) -> None:
        """Wait until everything written is on the disk: called before a checkpoint that relies on it.

        Raises DiskError: lines of metrics wait. Rollouts may wait longer, as no checkpoint relies on them.
        """
        self.check()
        self.refusals.allow(self._sync_rollouts)
        self._log.sync()

    def close(self) -> None:
        """Sync, and close the log. What a full disk refuses now is of steps after the newest checkpoint, whose `sync`
        it would have refused, too: a resume repeats them."""
        self.refusals.allow(self._sync_rollouts)
        self.refusals.allow(self._log.close)

    def _sync_rollouts(self) -> None:
        self.finish_rollouts()
        self._write_waiting()
        self._files.sync(self._unsynced)
        self._unsynced.clear()

    def _write_waiting(self) -> None:
        """Write the evaluations that wait, and the rollouts, the newest first: they are read first."""
        for step in list(self._unwritten):
            self._evaluations.write(step, self._unwritten[step])
            del self._unwritten[step]
        for step in sorted(self._waiting, reverse=True):
            self._files.write(step, self._waiting[step])
            del self._waiting[step]
            self._unsynced.add(step)

    def _retain(self, newest: int) -> None:
        """Remove the groups that do not stay after the step `newest`."""
        self._remove({step for step in self._kept if not self.retention.keeps(step, newest)})

    def _remove(self, steps: set[int]) -> None:
        for step in sorted(steps):
            self._files.remove(step)
            self._waiting.pop(step, None)
        self._kept -= steps
        self._unsynced -= steps


def _content(head: Mapping[str, Any], pairs: Sequence[tuple[Group, Tensor | None]]) -> dict[str, bytes]:
    return RolloutFiles.content({**head, **group_record(*pair)} for pair in pairs)
