"""`rollouts.keep`: which files stay, whatever kills and resumes come in between, and that no other file is touched."""

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from fakes.tiny_policy import random_groups
from oncurve.config import load_config
from oncurve.errors import ConfigError
from oncurve.report import RolloutFiles
from oncurve.trainer import Recorder, RolloutsSettings, TrainerState

STEPS = 12


def kept(keep: str, steps: int) -> list[int]:
    """By the words of the setting."""
    found = range(1, steps + 1)
    if keep == "all":
        return list(found)
    word, number = keep.split()
    if word == "last":
        return list(found)[-int(number) :]
    return sorted({1, steps, *(step for step in found if step % int(number) == 0)})


def write(run: Path, keep: str, after: tuple[int, int], until: int) -> tuple[int, int]:
    """Steps after (step, bytes of the log) up to `until`; the same pair at the end, as a checkpoint has it."""
    recorder = Recorder(run, TrainerState(step=after[0], metrics_bytes=after[1]), RolloutsSettings(keep=keep))
    for step in range(after[0] + 1, until + 1):
        groups = random_groups(2, seed=step)
        recorder.rollouts(step, groups, [None] * len(groups))
        after = step, recorder.metrics({"step": float(step)})
    recorder.close()
    return after


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("keep", ["all", "last 1", "last 3", "last 100", "every 1", "every 4", "every 5", "every 100"])
def test_what_stays_is_what_the_setting_says_after_any_kills(tmp_path: Path, keep: str) -> None:
    whole, killed, chance = tmp_path / "whole", tmp_path / "killed", random.Random(keep)
    write(whole, keep, (0, 0), STEPS)
    assert RolloutFiles(whole).steps() == tuple(kept(keep, STEPS))
    for _ in range(2):
        checkpoint = (0, 0)
        for path in killed.rglob("*.gz"):
            path.unlink()
        while checkpoint[0] < STEPS:
            checkpoint = write(killed, keep, checkpoint, min(STEPS, checkpoint[0] + chance.randint(0, 4)))
            write(killed, keep, checkpoint, min(STEPS, checkpoint[0] + chance.randint(0, 4)))  # lost by a kill
        assert RolloutFiles(killed).steps()
        write(killed, keep, checkpoint, STEPS)
        assert contents(killed) == contents(whole)


def test_the_step_that_runs_or_has_failed_is_there_with_the_one_before(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, TrainerState(), RolloutsSettings(keep="last 1"))
    for step in (1, 2):
        recorder.rollouts(step, random_groups(1, seed=step), [None])
        recorder.metrics({"step": float(step)})
    recorder.rollouts(3, random_groups(1), [None])
    recorder.close()
    assert RolloutFiles(tmp_path).steps() == (2, 3)


def test_a_step_is_a_file_that_gzip_reads_and_equal_groups_are_equal_bytes(tmp_path: Path) -> None:
    for run in ("one", "two"):
        write(tmp_path / run, "all", (0, 0), 1)
    one, two = (RolloutFiles(tmp_path / run).path(1).read_bytes() for run in ("one", "two"))
    assert one == two
    lines = gzip.decompress(one).decode().splitlines()
    assert [json.loads(line) for line in lines] == RolloutFiles(tmp_path / "one").read(1)
    assert len(lines) == 2


@pytest.mark.parametrize(
    "value",
    ["none", "last", "last 0", "every 0", "every -1", "last 3 ", "Last 3", "first 3", "last 1e3", 20, True, 2.0],
)
def test_another_value_is_refused_with_examples(value: object) -> None:
    expected = re.escape('rollouts.keep: expected "all", "last 20" or "every 10"')
    with pytest.raises(ConfigError, match=expected):
        load_config("grpo", settings={"rollouts": {"keep": value}})
