"""The command line in a copy of a small project; a module with other files in it has a fixture of its own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.project import Said, lay_out, oncurve
from oncurve.models.loading import hub


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("project"))


@pytest.fixture
def command(
    laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    shutil.copytree(laid_out, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "reachable", lambda: False)
    return lambda *arguments: oncurve(arguments, monkeypatch, capfd)
