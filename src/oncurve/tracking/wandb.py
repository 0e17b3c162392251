"""Weights & Biases, online or offline (`oncurve[wandb]`)."""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.tracking.protocol import CompletionRow, TrackedRun, TrackingSettings

BLOCK_BYTES = 1 << 15
HEADER_BYTES = 7  # of a file and of a fragment: crc32 (4), length (2), type (1)
WHOLE, LAST = 1, 4


class Wandb:
    """A run of wandb with the id of the run, so that it is one run after every resume.

    wandb takes no point back. Online its server says which steps it has; offline they are in the run's files, `wandb/`
    in the run directory, which `wandb sync` sends in their order.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self.place = ""

    @classmethod
    def problem(cls, settings: TrackingSettings) -> str | None:
        """Return why wandb cannot be used: the run is online and there is no key."""
        import wandb

        if _mode(settings) == "online" and not wandb.login(prompt=False, verify=False):
            return (
                "wandb has no key for its server: run `wandb login`, set WANDB_API_KEY, or write files for a later "
                'upload with tracking.mode = "offline"'
            )
        return None

    def begin(self, run: TrackedRun) -> int:
        """Open the run of this id; returns the last step that the server has, or the files of an offline run."""
        import wandb

        online, limit = _mode(run.settings) == "online", run.settings.timeout_seconds
        shown = -1 if online else last_step(run.folder, run.id)
        self._run = wandb.init(
            project=run.settings.project,
            entity=run.settings.entity,
            id=run.id,
            name=run.name,
            tags=run.settings.tags,
            config=dict(run.config),
            dir=str(run.folder),
            mode=_mode(run.settings),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, init_timeout=limit, finish_timeout=limit),
        )
        self.place = self._run.url if online else f"wandb sync {run.folder / 'wandb'}/offline-run-*-{run.id}*"
        return self._run.starting_step - 1 if online else shown

    def groups(self, step: int, rows: Sequence[CompletionRow]) -> None:
        """A `wandb.Table` under the key `completions`, in the same row of the history as the step's metrics."""
        import wandb

        table = wandb.Table(columns=list(CompletionRow._fields), data=[list(row) for row in rows])
        self._run.log({"completions": table}, step=step, commit=False)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """A row of the history."""
        self._run.log(dict(metrics), step=step, commit=True)

    def close(self) -> None:
        """Finish the run: wandb writes and sends the rest, for `tracking.timeout_seconds` at most."""
        if self._run is not None:
            self._run.finish()


def _mode(settings: TrackingSettings) -> Any:
    return settings.mode or os.environ.get("WANDB_MODE", "online")


def last_step(folder: Path, run: str) -> int:
    """Return the last step in the `.wandb` files that earlier processes wrote of a run; -1: none."""
    from wandb.proto.wandb_internal_pb2 import Record

    last = -1
    for file in (folder / "wandb").glob(f"*run-*-{run}*/run-{run}.wandb"):
        for raw in records(file.read_bytes()):
            record = Record.FromString(raw)
            if record.HasField("history"):
                last = max(last, record.history.step.num)
    return last


def records(data: bytes) -> Iterator[bytes]:
    """Return the whole records of a `.wandb` file, which is a log in LevelDB's format after a header of 7 bytes.

    A record is in fragments that do not cross blocks of 32 KiB. The file of a killed process may end within one.
    """
    at, record = HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:  # the end of a block that is too short for a fragment
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        fragment = data[at + HEADER_BYTES : at + HEADER_BYTES + size]
        if kind == 0 or len(fragment) < size:
            return
        at += HEADER_BYTES + size
        record += fragment
        if kind in (WHOLE, LAST):
            yield record
            record = b""
