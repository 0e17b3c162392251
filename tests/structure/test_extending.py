"""A new component is one file, one line in a table, one row in the docs: those of docs/extending.md, in a copy."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oncurve

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
SCRIPTS = Path(__file__).parents[2] / "scripts"
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(
    r"^\| [\w ]+ \| `(\S+)` \| (?:a part of )?`oncurve/(\S+)` \| `oncurve/(\S+)` \| `(\"[\w-]+\"): (\w+)` \|$",
    re.MULTILINE,
)
TABLE = re.compile(r"^\w+_KINDS: dict\[str, .*\] = \{", re.MULTILINE)

SCRIPT = """
import csv
import sys
from pathlib import Path

import oncurve
from oncurve.config import explain, load_config
from oncurve.models import tiny

with open("sums.csv", "w", newline="") as text:
    csv.writer(text).writerows([("left", "right"), *((n, n) for n in range(20))])
Path("recipe.toml").write_text('''
[model]
path = "%s"
[data]
kind = "csv"
path = "sums.csv"
template = "{left}+{right}="
prompts_per_step = 2
[rollout]
group_size = 3
max_new_tokens = 4
[advantage]
kind = "median"
[objective]
kind = "luspo"
[correction]
kind = "tempered"
[aggregation]
kind = "length-power"
[kl]
estimator = "chi2"
aggregation = "length-power"
[tracking]
to = ["lines"]
[[rewards]]
kind = "short_enough"
limit = 3
''' % tiny.path())
config, _ = load_config("recipe.toml")
print(explain(config))
run = oncurve.train(recipe="recipe.toml", steps=2, out="run")
print("trained", len(run.metrics), all(metrics["policy/loss"] == metrics["policy/loss"] for metrics in run.metrics))
run.close()
"""


def rows() -> list[tuple[str, ...]]:
    return ROW.findall(PAGE.partition("<!-- table: kinds -->")[2])


def put_into(package: Path, body: str, becomes: str, table: str, name: str, thing: str) -> None:
    """The file, and its line in the table; where the table's file is the room, the code stands before the table."""
    text = (package / table).read_text(encoding="utf-8")
    if becomes != table:
        (package / becomes).write_text(naming_modules(body, becomes), encoding="utf-8")
        body = f"from oncurve.{becomes.removesuffix('.py').replace('/', '.')} import {thing}\n"
    found = [match for match in TABLE.finditer(text) if match[0].startswith(KINDS_OF.get(thing, ""))]
    (start,) = found
    text = f"{text[: start.start()]}{body}\n{start[0]}\n    {name}: {thing},{text[start.end() :]}"
    (package / table).write_text(text, encoding="utf-8")


def naming_modules(body: str, becomes: str) -> str:
    """The file with its imports from the package it moves into naming the modules that define the names."""
    package = "oncurve." + becomes.rpartition("/")[0].replace("/", ".")

    def imports(found: re.Match[str]) -> str:
        names = [name.strip() for name in found[1].split(",")]
        home = {name: getattr(importlib.import_module(package), name).__module__ for name in names}
        return "\n".join(f"from {module} import {name}" for name, module in home.items())

    return re.sub(rf"^from {re.escape(package)} import (.+)$", imports, body, flags=re.MULTILINE)


KINDS_OF = {"Luspo": "OBJECTIVE", "LengthPower": "AGGREGATION", "Tempered": "CORRECTION"}


@pytest.mark.slow
def test_the_files_of_the_page_become_kinds_by_a_line_in_a_table(tmp_path: Path) -> None:
    shipped = Path(oncurve.__file__).parent
    shutil.copytree(shipped, tmp_path / "src" / "oncurve", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    files = dict(BLOCK.findall(PAGE))
    assert len(rows()) == 8
    for file, becomes, table, name, thing in rows():
        put_into(tmp_path / "src" / "oncurve", files[file], becomes, table, name, thing)
    said = python(tmp_path, "-c", SCRIPT)
    assert "J(θ) = 1/B Σ_i 1/|o_i|^0.5 Σ_t { w_it^0.5 min(s_i Â_it, clip(s_i, 0.9996, 1.0004) Â_it) }" in said
    assert "- 0.001 · 1/B Σ_i 1/|o_i|^0.5 Σ_t KL_it" in said
    assert "1 (r_i - median r), the median of its group of G" in said
    assert "chi2: (e⁻ᵈ - 1)²/2" in said
    assert "trained 2 True" in said
    kept = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    for _, _, _, name, _ in rows():
        assert name in kept
    page = python(tmp_path, "scripts/site/configuration_page.py")
    for _, _, _, name, _ in rows():
        assert f"`{name.strip(chr(34))}`" in page


def python(folder: Path, *arguments: str) -> str:
    """What Python prints that imports the package in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
