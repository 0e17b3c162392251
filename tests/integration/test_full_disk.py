"""A disk that is full for a while costs a run nothing; one that stays full is told at the end.

The runs are on a real disk of 16 MB, a tmpfs that a file of junk fills and frees.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.killed_runs import QUIET
from fakes.tables import table

pytestmark = pytest.mark.slow
BEGINNING = """
import json, os, sys
from contextlib import suppress
from pathlib import Path
import oncurve
from fakes.project import lay_out
from oncurve import cli
from fakes.killed_runs import compare, metrics_of
from oncurve.durable import DiskError

SETTINGS = {"run.steps": 8, "checkpoint.every": 2, "checkpoint.keep": 1}

def fill(but=0):
    with open("junk", "ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
    os.truncate("junk", os.path.getsize("junk") - but)

def free():
    os.unlink("junk")

def train(out, on_step=lambda result: None):
    oncurve.train("recipe.toml", out=out, on_step=on_step, settings=SETTINGS).close()

def command(*arguments):
    sys.argv = ["oncurve", *arguments]
    try:
        cli.main()
    except SystemExit as end:
        return end.code
    return 0

def ends_without_room(at, but=0):
    train("whole")
    try:
        train("out", lambda result: result.step == at and fill(but))
        sys.exit("nothing was raised")
    except DiskError as error:
        print("raised:", error, *error.__notes__)

def mended_by_a_resume():
    free()
    assert command("resume", "out") == 0
    compare(Path("whole"), Path("out"), 8, "disk/")
    assert Path("out/report.html").is_file()

lay_out(Path("."))
"""
FULL_FOR_A_WHILE_WITH_SHARDS = """
SETTINGS |= {"cluster.sharding": "fsdp", "cluster.learner_ranks": 2, "checkpoint.every": 1}
train("whole")
def on_step(result):
    if result.step in (2, 5):
        fill()
    if result.step in (4, 7):
        free()
train("out", on_step)
one, two = (metrics_of(Path(run), "cluster/", "disk/") for run in ("whole", "out"))
assert one == two
for rank in range(2):
    file = f"checkpoints/step-000008/learner-00{rank}-of-002.safetensors"
    assert Path("out", file).read_bytes() == Path("whole", file).read_bytes()
"""
FULL_TO_THE_END = """
ends_without_room(5)
print("code", command("resume", "out"))
mended_by_a_resume()
"""
ROOM_FOR_THE_MODEL_ALONE = """
ends_without_room(7, but=200_000)
assert Path("out/model-000008/model.safetensors").read_bytes() == Path("whole/model/model.safetensors").read_bytes()
mended_by_a_resume()
"""
ROOM_FOR_THE_CHECKPOINT_ALONE = """
ends_without_room(8, but=40_000)
mended_by_a_resume()
"""


MOUNT = 'mount -t tmpfs -o size=16m tmpfs "$1" && cd "$1" && shift && exec "$@"'
"""In a user's own namespace, for which no root is needed."""


def run(folder: Path, script: str) -> tuple[str, str]:
    """Run a script in `folder`, a disk of its own that is empty at the start; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **QUIET, "COLUMNS": "400"}
    begin = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh", str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*begin, "true"], capture_output=True).returncode:
        pytest.skip("a small disk needs user namespaces with mounts, which this system does not allow")
    words = [*begin, sys.executable, "-c", BEGINNING + script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_a_disk_that_is_full_for_a_while_loses_no_rank_of_a_divided_model(tmp_path: Path) -> None:
    out, errors = run(tmp_path, FULL_FOR_A_WHILE_WITH_SHARDS)
    said = re.findall(
        r"^step (\d+): .*learner-00\d-of-002.*No space left.*Training goes on", out + errors, re.MULTILINE
    )
    assert said
    assert "was lost" not in out + errors


def test_a_disk_that_is_full_to_the_end_is_an_error_that_a_resume_mends(tmp_path: Path) -> None:
    out, errors = run(tmp_path, FULL_TO_THE_END)
    assert re.search(r"^raised: .*cannot be written: No space left.*; free some space and resume", out, re.MULTILINE)
    assert [words for words in table("full_disk", "said") if words not in out] == []
    assert re.search(r"^oncurve: .*No space left", errors, re.MULTILINE)
    assert "Traceback" not in errors


def test_the_model_is_saved_where_there_is_space_for_it_alone(tmp_path: Path) -> None:
    out, _ = run(tmp_path, ROOM_FOR_THE_MODEL_ALONE)
    assert "there was no space for its checkpoint; the model is in out/model-000008" in out
    assert re.search(r"^raised: out/checkpoints/step-000008\S* cannot be written: No space left", out, re.MULTILINE)


def test_a_model_without_space_is_written_by_a_resume(tmp_path: Path) -> None:
    out, _ = run(tmp_path, ROOM_FOR_THE_CHECKPOINT_ALONE)
    assert (
        "all steps are in a checkpoint, but not the model; once there is space, this writes it: oncurve resume" in out
    )
    assert re.search(r"raised: .*model.* cannot be written: No space left", out)
