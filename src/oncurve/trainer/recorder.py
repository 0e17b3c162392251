"""The run directory's growing part: one line a step in `metrics.jsonl`, every group in `rollouts/`, incidents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from oncurve import durable
from oncurve.report import group_record
from oncurve.trainer.state import TrainerState
from oncurve.types import Group, TrainBatch, axes_of


class Recorder:
    """Writes the files of each step. Opening it at a state removes what later steps had written.

    `notes`: messages about existing files. Raises StorageError: `rollouts/` is a link.

    rollouts/step-000012.jsonl   one group per line: prompt, completions, token ids, log-probs, rewards, advantages
    metrics.jsonl                one line per step, declared keys
    incidents/step-000012-0/     the batch of an update that was skipped, as tensors
    """

    def __init__(self, directory: Path, state: TrainerState) -> None:
        self.directory = directory
        for path in durable.own_folder(directory / "rollouts").glob("step-*.jsonl"):
            if path.stem.removeprefix("step-").isdigit() and int(path.stem.removeprefix("step-")) > state.step:
                path.unlink()
        self._log, self.notes = durable.AppendLog.reopened(directory / "metrics.jsonl", state.metrics_bytes)
        self._unsynced: list[Path] = []

    def rollouts(self, step: int, groups: Sequence[Group], advantages: Sequence[Tensor | None]) -> None:
        """Write every group of a step, with the advantages of its completions; None where it was left out."""
        lines = [
            json.dumps({"step": step, **group_record(group, rows)}, ensure_ascii=False) + "\n"
            for group, rows in zip(groups, advantages, strict=True)
        ]
        text = "".join(lines).encode("utf-8", "replace")
        path = self.directory / "rollouts" / f"step-{step:06d}.jsonl"
        durable.write_file(path, text, sync=False)  # waiting for the disk would take as long as a small model's step
        self._unsynced.append(path)

    def metrics(self, metrics: Mapping[str, float]) -> int:
        """Write one step's line; returns the length of `metrics.jsonl` in bytes."""
        self._log.append(dict(metrics))
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
        durable.sync_files(self._unsynced)
        self._unsynced.clear()
        self._log.sync()

    def close(self) -> None:
        """Sync, and close the log."""
        durable.sync_files(self._unsynced)
        self._unsynced.clear()
        self._log.close()
