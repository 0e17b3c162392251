"""A small project and the command line in it; modules whose tests share a project have their own fixture `site`."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes.project import Command, lay_out, oncurve
from oncurve.models.loading import ModelConfig, hub


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("project"))


@pytest.fixture
def site(laid_out: Path, tmp_path: Path) -> Path:
    """A copy of the project, for this test alone."""
    return shutil.copytree(laid_out, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def project(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, in which the test works."""
    monkeypatch.chdir(site)
    monkeypatch.setattr(hub, "reachable", lambda: False)
    return site


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that are loaded in this test."""
    real, found = ModelConfig.build, list[str]()

    def build(self: ModelConfig, *arguments: Any, **named: Any) -> Any:
        built = real(self, *arguments, **named)
        found.append(self.path)
        return built

    monkeypatch.setattr(ModelConfig, "build", build)
    return found


@pytest.fixture
def command(project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: oncurve(arguments, monkeypatch, capfd)
