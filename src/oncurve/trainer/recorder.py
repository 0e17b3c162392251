"""The run directory's growing part: one line a step in `metrics.jsonl`, the groups in `rollouts/`, incidents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from oncurve import durable
from oncurve.report import RolloutFiles, group_record
from oncurve.trainer.retention import RolloutsSettings
from oncurve.trainer.state import TrainerState
from oncurve.types import Group, TrainBatch, axes_of


class Recorder:
    """Writes the files of each step. Opening it at a state removes what later steps had written.

    `notes`: messages about existing files. Raises StorageError: `rollouts/` is a link.

    rollouts/step-000012.jsonl.gz   one group per line: prompt, completions, token ids, log-probs, rewards, advantages
    metrics.jsonl                   one line per step, declared keys
    incidents/step-000012-0/        the batch of an update that was skipped, as tensors

    `retention` says of which steps the groups stay. Those of a step go when the line of a later one is written, so that
    the groups of the step that is running, or has failed, are always there.
    """

    def __init__(self, directory: Path, state: TrainerState, retention: RolloutsSettings | None = None) -> None:
        self.directory = directory
        self._retention = retention or RolloutsSettings()
        self._files = RolloutFiles(directory)
        durable.own_folder(self._files.folder)
        self._kept = set(self._files.steps())
        self._remove({step for step in self._kept if step > state.step})
        self._retain(state.step)
        self._log, self.notes = durable.AppendLog.reopened(directory / "metrics.jsonl", state.metrics_bytes)
        self._unsynced: set[int] = set()

    def rollouts(self, step: int, groups: Sequence[Group], advantages: Sequence[Tensor | None]) -> None:
        """Write every group of a step, with the advantages of its completions; None where it was left out."""
        pairs = zip(groups, advantages, strict=True)
        self._files.write(step, ({"step": step, **group_record(group, rows)} for group, rows in pairs))
        self._kept.add(step)
        self._unsynced.add(step)

    def metrics(self, metrics: Mapping[str, float]) -> int:
        """Write one step's line; returns the length of `metrics.jsonl` in bytes."""
        self._log.append(dict(metrics))
        self._retain(int(metrics["step"]))
        return self._log.offset

    def incident(self, step: int, update: int, batch: TrainBatch, reason: str) -> Path:
        """Save the batch of a skipped update under `incidents/`."""
        tensors: dict[str, Tensor] = {}
        for name, axes in axes_of(batch).items():
            value = getattr(batch, name)
            if value is None:
                continue
            if axes == "G":  # ragged: one after another, and how long each is
                tensors[f"{name}.lengths"] = torch.tensor([len(part) for part in value])
                value = torch.cat(value)
            tensors[name] = value.detach().to("cpu").contiguous()
        path = self.directory / "incidents" / f"step-{step:06d}-{update}"
        if not path.exists():
            durable.write_directory(path, {"batch.safetensors": tensors, "reason.txt": reason.encode()})
        return path

    def sync(self) -> None:
        """Wait until everything written is on the disk: called before a checkpoint that relies on it."""
        self._files.sync(self._unsynced)
        self._unsynced.clear()
        self._log.sync()

    def close(self) -> None:
        """Sync, and close the log."""
        self._files.sync(self._unsynced)
        self._unsynced.clear()
        self._log.close()

    def _retain(self, newest: int) -> None:
        """Remove the groups that do not stay after the step `newest`."""
        self._remove({step for step in self._kept if not self._retention.keeps(step, newest)})

    def _remove(self, steps: set[int]) -> None:
        for step in sorted(steps):
            self._files.remove(step)
        self._kept -= steps
