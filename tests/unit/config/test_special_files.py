"""A pipe, a device or a socket where a file is meant is refused at once: reading it would wait, or never end."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from oncurve.base.errors import UserError
from oncurve.base.imports import locate
from oncurve.config.layers import _absolute_value, read_layers
from oncurve.data import read_file
from oncurve.data.formats import read_jsonl
from oncurve.rewards import RewardSet
from oncurve.run.commands.evaluation import evaluate_target
from oncurve.run.directory.folder import RunDirectory


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
    "labels.csv": lambda path: read_file(path, "labels"),
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


@contextmanager
def without_privileges() -> Iterator[None]:
    """Inside, this process has not the rights of root, which no permission stops."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.parametrize("inner", ["", "thing", "folder/thing"])
def test_what_this_user_may_not_look_at_is_refused_wherever_it_is_named(tmp_path: Path, inner: str) -> None:
    closed = tmp_path / "closed"
    (closed / "folder").mkdir(parents=True)
    (closed / "folder" / "thing").touch()
    path = str(closed / inner) if inner else str(closed)
    uses: dict[str, Callable[[], object]] = {
        "RECIPE": lambda: read_layers(path),
        "--out": lambda: RunDirectory.check_free(Path(path)),
        "DIR": lambda: RunDirectory.check_run(Path(path)),
        "DIR|MODEL": lambda: evaluate_target(path),
        "a path to code": lambda: locate(f"{closed}/folder/code.py:name", None),
        **{key: partial(_absolute_value, tuple(key.split(".")), path, tmp_path) for key in ("model.path", "data.path")},
    }
    closed.chmod(0)
    try:
        for where, use in uses.items():
            with without_privileges(), pytest.raises(UserError, match=r"cannot be reached: .*permission") as said:
                use()
            assert str(said.value).startswith(f"{where}: "), where
    finally:
        closed.chmod(0o755)
