"""kill -9 at random instants, resumed each time: the run equals the uninterrupted one bit for bit.

`ONCURVE_KILLS=50` sets how often each run is killed (3 here, so that the slow tests stay short).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fakes.killed_runs import QUIET, compare, finish
from fakes.started import start_process
from fakes.tables import table
from fakes.waiting import until
from oncurve import durable
from oncurve.config.layers import RECIPES
from oncurve.report import RolloutIndex
from oncurve.tasks import KINDS as TASKS

KILLS = int(os.environ.get("ONCURVE_KILLS", "3"))
STEPS_PER_KILL = 4


GAMES = Path(__file__).parents[1] / "fakes" / "episodes.py"
VARIANTS = table("kill_and_resume", "variants")


SOURCES = {"one": 7, "two": 12, "three": 5}
"""Rows of each source: so few that each goes through its rows several times."""


def write_sources(folder: Path) -> None:
    """Rows of the built-in task, other ones in each file."""
    for number, (name, count) in enumerate(SOURCES.items()):
        rows = (TASKS["arithmetic"]("train", 100 * number + index) for index in range(count))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def settings(variant: str, steps: int, folder: Path) -> list[str]:
    return [
        "rollout.group_size=4",
        *(word.replace("FOLDER", str(folder)).replace("GAMES", str(GAMES)) for word in VARIANTS[variant]),
        f"run.steps={steps}",
        "run.seed=11",
        "data.prompts_per_step=3",
        "rollout.max_new_tokens=24",
        "learner.learning_rate=1e-3",
        "learner.minibatches=2",
        "kl.coef=0.05",
        "checkpoint.every=1",
        "checkpoint.keep=2",
    ]


def start(arguments: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        streams = {"stdout": output, "stderr": output, "env": {**os.environ, **QUIET}}
        return start_process(sys.executable, "-m", "oncurve", *arguments, start_new_session=True, **streams)


def steps_done(out: Path) -> int:
    numbers = durable.numbered(out / "checkpoints")
    return numbers[-1][0] if numbers else 0


def run_killed(recipe: Path, out: Path, variant: str, steps: int, log: Path) -> int:
    """Train `out` to its end under kills; returns how many there were while it ran."""
    chance = random.Random(variant)
    kills = 0
    while kills < KILLS and steps_done(out) < steps:
        fresh = not (out / "config.toml").exists()
        arguments = (
            ["train", str(recipe), *settings(variant, steps, out.parent), "--out", str(out)]
            if fresh
            else ["resume", str(out)]
        )
        before, process = steps_done(out), start(arguments, log)
        # Half of the kills fall anywhere in the start, the others within the first steps it takes.
        if chance.random() < 0.75:
            until(lambda: steps_done(out) != before or process.poll() is not None, 300.0)  # noqa: B023
            time.sleep(chance.random() * 0.4)
        else:
            time.sleep(chance.random() * 4)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
        for _, path in durable.numbered(out / "checkpoints"):
            assert durable.verify(path) == []
    if steps_done(out) < steps or not (out / "report.html").exists():
        finish("resume", str(out))
    return kills


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path: Path, variant: str) -> None:
    recipe = RECIPES / "task.toml"
    steps = KILLS * STEPS_PER_KILL
    whole, killed, log = tmp_path / "whole", tmp_path / "killed", tmp_path / "log"
    write_sources(tmp_path)
    finish("train", str(recipe), *settings(variant, steps, tmp_path), "--out", str(whole))
    kills = run_killed(recipe, killed, variant, steps, log)
    assert kills >= KILLS // 2, f"only {kills} kills fell into the run"
    compare(whole, killed, steps)
    if variant == "sources":
        each_source_gives_its_share(killed, tmp_path)
    if variant == "dynamic":
        no_group_twice_and_none_lost(killed)


def each_source_gives_its_share(out: Path, folder: Path) -> None:
    """The prompts are of the sources about in the proportion of their weights; a whole epoch has it exactly."""
    of = {
        json.loads(line)["prompt"]: name
        for name in SOURCES
        for line in (folder / f"{name}.jsonl").read_text().splitlines()
    }
    files = RolloutIndex(out)
    groups = [group for step in files.steps() for group in files.groups(step)]
    counts = Counter(of[group["prompt"]["text"]] for group in groups)
    for name, weight in (("one", 3), ("two", 1), ("three", 0.5)):
        assert abs(counts[name] - len(groups) * weight / 4.5) <= 6, counts


def no_group_twice_and_none_lost(out: Path) -> None:
    """Every group that was sampled was trained on or left out in one step, or waits in the last checkpoint."""
    every = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in every if line["step"]]  # step 0 is the evaluation before training
    files = RolloutIndex(out)
    groups = [group for step in files.steps() for group in files.groups(step)]
    names = [(group["draw"], group["prompt"]["id"], group["completions"][0]["sample_index"]) for group in groups]
    assert len(names) == len(set(names)) == sum(line["groups/sampled"] for line in lines) - lines[-1]["groups/surplus"]
    trained = [group for group in groups if group["completions"][0]["advantage"] is not None]
    assert len(trained) == sum(line["groups/trained"] for line in lines)
    assert any(line["groups/surplus"] for line in lines)


@pytest.mark.slow
def test_a_flipped_byte_is_detected_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    recipe, whole, harmed = str(RECIPES / "task.toml"), tmp_path / "whole", tmp_path / "harmed"
    for out in (whole, harmed):
        finish("train", recipe, *settings("curriculum", 4, tmp_path), "--out", str(out))
    weights = harmed / "checkpoints" / "step-000004" / "learner.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert "step-000004 is damaged" in finish("resume", str(harmed)).replace("\n", " ")
    compare(whole, harmed, 4)
