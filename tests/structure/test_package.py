"""What an installed package has: files, recipes by name, bounds of versions, a description without dead links."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fakes.tables import table

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "oncurve"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DESCRIPTION = ROOT / PROJECT["project"]["readme"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCES = ("src", "docs", "examples", "scripts", "tests", "bench")


def tracked(folder: Path) -> set[str]:
    """Every file below `folder` that git tracks, or all, where this is no checkout."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(folder), "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return {name for name in names if (folder / name).is_file()}
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return {name for name in names if "__pycache__" not in name and ".egg-info" not in name}


def test_every_file_of_the_package_is_installed_with_it() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["oncurve"]
    data = {path.relative_to(PACKAGE).as_posix() for pattern in patterns for path in PACKAGE.glob(pattern)}
    modules = {name for name in tracked(PACKAGE) if name.endswith(".py") and is_module(PACKAGE / name)}
    assert tracked(PACKAGE) - data - modules == set()
    needed = table("package", "needed")
    assert {*needed, "models/tiny/model.safetensors"} <= tracked(PACKAGE)


def is_module(file: Path) -> bool:
    """Whether setuptools finds it by itself: every folder up to the package has an `__init__.py`."""
    return all((folder / "__init__.py").is_file() for folder in file.parents if folder.is_relative_to(PACKAGE))


def test_every_pattern_names_a_file() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["oncurve"]
    assert [pattern for pattern in patterns if not any(PACKAGE.glob(pattern))] == []


def test_every_requirement_has_a_tested_version_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pinned = {canonicalize_name(pin.name): pin.specifier for pin in pins}
    project = PROJECT["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"]["dev"]):
        wanted = Requirement(text)
        (exact,) = pinned[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(exact.version), text
        bounded = any(each.operator == "<" for each in wanted.specifier)
        assert bounded or wanted.name == "setuptools", f"{text}: no upper bound"


def test_an_extra_that_is_asked_for_is_there_by_that_name() -> None:
    """Names of extras are compared as they are written by some versions of pip, which warn where they differ."""
    for text in PROJECT["project"]["dependencies"]:
        wanted = Requirement(text)
        offered = metadata(wanted.name).get_all("Provides-Extra") or [] if wanted.extras else []
        assert set(wanted.extras) <= set(offered), text


def test_the_description_for_a_package_index_has_no_link_to_a_file_and_tells_what_the_readme_tells() -> None:
    text = DESCRIPTION.read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [target for target in LINK.findall(text) if "://" not in target] == []
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code in readme
    (line,) = [line for line in text.splitlines() if line.startswith("pip install torch==")]
    assert line in readme
    torch = next(
        text for text in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "torch==" in text
    )
    assert line.split()[2] == torch


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and a source distribution, built offline from a copy of the files that belong to the project."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in tracked(ROOT):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    hooks = "from setuptools import build_meta as build; import sys; out = sys.argv[1]"
    script = f"{hooks}; build.build_sdist(out); build.build_wheel(out)"
    done = subprocess.run([sys.executable, "-c", script, str(out)], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_complete_metadata(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        found: Message = Parser().parsestr(wheel.read(about).decode())
    assert {f"oncurve/{name}" for name in tracked(PACKAGE)} <= names
    assert {name.split("/")[0] for name in names} == {"oncurve", about.split("/")[0]}
    assert found["Author"] == "oncurve developers"
    assert found["License-Expression"] == "Apache-2.0"
    assert "Operating System :: POSIX :: Linux" in found.get_all("Classifier", [])
    assert found.get_payload().strip() == DESCRIPTION.read_text(encoding="utf-8").strip()


@pytest.mark.slow
def test_the_source_distribution_has_whatever_the_pages_link_to(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"{folder}/{name}" for folder in SOURCES for name in tracked(ROOT / folder)} <= names
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = {target.partition("#")[0] for target in LINK.findall(readme) if "://" not in target}
    assert targets - {""} <= names


@pytest.mark.slow
def test_an_installed_wheel_trains_a_recipe_by_its_name_in_an_empty_folder(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    installed, folder = tmp_path / "installed", tmp_path / "empty"
    folder.mkdir()
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(installed)
    words = table("package", "train")
    program = f"import sys; sys.path.insert(0, {str(installed)!r}); from oncurve.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert f'"{installed}/oncurve/models/tiny"' in (folder / "run" / "config.toml").read_text(encoding="utf-8")
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]
