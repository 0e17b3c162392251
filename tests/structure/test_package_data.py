"""What is no Python file is installed only where pyproject.toml names it: without the tiny model there is no demo."""

import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "oncurve"


def data_files() -> set[str]:
    """Every file of the package that is not Python: those git tracks, or all, where this is no checkout."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(PACKAGE), "ls-files"]
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    else:
        names = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file()]
    return {name for name in names if not name.endswith((".py", ".pyc"))}


def test_every_file_that_is_not_python_is_installed_with_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["oncurve"]
    installed = {path.relative_to(PACKAGE).as_posix() for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert data_files() - installed == set()
    assert {"py.typed", "presets/grpo.toml", "models/tiny/model.safetensors", "templates/report.css"} <= data_files()


def test_every_pattern_names_a_file() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["oncurve"]
    assert [pattern for pattern in patterns if not any(PACKAGE.glob(pattern))] == []
