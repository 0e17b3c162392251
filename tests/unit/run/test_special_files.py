"""A pipe, a device or a socket where a file is meant is refused at once: reading it would wait, or never end."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncurve.data.jsonl import read_jsonl
from oncurve.data.judgements import _rows
from oncurve.errors import UserError
from oncurve.paths import not_a_file
from oncurve.rewards import RewardSet
from oncurve.run.layers import read_layers
from oncurve.spec import locate


@pytest.fixture
def special(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    held = []

    def make(kind: str, name: str) -> Path:
        path = tmp_path / name
        if kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a device":
            path.symlink_to("/dev/zero")
        else:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(path))
            held.append(listener)
        return path

    yield make
    for listener in held:
        listener.close()


READERS = {
    "rows.jsonl": lambda path: read_jsonl(path),
    "labels.json": lambda path: _rows(path, "labels"),
    "recipe.toml": lambda path: read_layers(path),
    "recipe.yaml": lambda path: read_layers(path),
    "reward.py": lambda path: locate(f"{path}:reward"),
    "rewards.py": lambda path: RewardSet.build([{"path": f"{path}:reward"}]),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a socket"])
def test_what_is_no_file_is_refused_and_not_waited_for(
    special: Callable[[str, str], Path], kind: str, name: str
) -> None:
    path = special(kind, name)
    said: list[str] = []

    def read() -> None:
        try:
            READERS[name](path)
        except UserError as error:
            said.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(60)
    assert not reader.is_alive()
    assert f" is {kind}" in said[0]


def test_files_folders_and_what_is_missing_are_none_of_these(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not_a_file(tmp_path / "file") is None is not_a_file(tmp_path)
    assert not_a_file(tmp_path / "missing") is None
