"""`[cluster]` from the command line: the bits of one process, resumes with other ranks, and what is refused."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fakes.killed_runs import compare, finish, kill_all, metrics_of, start, until_checkpoints
from fakes.project import refused
from fakes.tables import table
from fakes.tolerance import about
from oncurve import durable

VLLM = ["cluster.kind=host", "cluster.engine=vllm", "cluster.rollout_workers=1"]
HOST = ["cluster.kind=host", "kl.coef=0.05", "learner.minibatches=2", "checkpoint.every=1", "checkpoint.keep=100"]


REFUSED = table("cluster_runs", "refused")
"""Words behind `cluster.kind=host`, and what is said."""


@pytest.mark.parametrize("words", REFUSED)
def test_what_ranks_cannot_do_is_refused_by_name(command, words: str) -> None:
    given = [each for word in words.split() for each in (VLLM if word == "VLLM" else [word])]
    refused(command("train", "recipe.toml", "cluster.kind=host", *given, "--out", "out"), *REFUSED[words])


EPISODES = [f"environment.kind={Path(__file__).parents[1] / 'fakes' / 'episodes.py'}:Guess"]
WORKERS = [*HOST, "cluster.shard_groups=2", "data.prompts_per_step=6"]


TRUNCATED = ["rollout.top_k=12", "rollout.top_p=0.9"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "processes"),
    [([], [(1, 1), (2, 2), (4, 1)]), (["lora.rank=4", *TRUNCATED], [(2, 2)]), ([*EPISODES, *TRUNCATED], [(4, 1)])],
    ids=["whole", "lora", "episodes"],
)
def test_a_run_whose_rollouts_have_one_two_and_four_workers_is_the_run_of_one_process(
    project: Path, more: list[str], processes: list[tuple[int, int]]
) -> None:
    arguments = ["train", "recipe.toml", *WORKERS, *more, "run.steps=6"]
    finish(*arguments, "--out", "none")
    for count, ranks in processes:
        name = f"workers-{count}"
        settings = [f"cluster.rollout_workers={count}", f"cluster.learner_ranks={ranks}"]
        said = finish(*arguments, *settings, "--out", name)
        assert f"Rollouts are decoded by {count} other process" in said
        assert ("An update is made by 2 processes of this machine with 1 thread each" in said) == (ranks == 2)
        compare(project / "none", project / name, 6)
        metrics = metrics_of(project / name)[-1]
        assert (metrics["cluster/workers_alive"], metrics.get("cluster/ranks_lost", 0)) == (count, 0)
        assert metrics["cluster/weights_bytes"] > 0
        assert 0 < metrics["cluster/rollout_busy"] <= 1
        assert 0 < metrics["cluster/learner_busy"] <= 1


@pytest.mark.slow
def test_a_run_that_is_killed_whole_goes_on_with_other_processes_to_the_same_bits(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = project / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    steps = 8
    finish("train", "recipe.toml", *WORKERS, f"run.steps={steps}", "--out", "one")
    out = project / "two"
    arguments = ["train", "recipe.toml", *WORKERS, f"run.steps={steps}", "--out", "two"]
    for ranks, workers in ((3, 1), (1, 3)):
        process = start(*arguments, f"cluster.learner_ranks={ranks}", f"cluster.rollout_workers={workers}")
        until_checkpoints(process, out, len(durable.numbered(out / "checkpoints")) + 2)
        assert len(psutil.Process(process.pid).children(recursive=True)) >= 2  # the nursery and its processes
        kill_all(process)
        assert [left.name for left in temporary.iterdir() if "inductor" not in left.name] == []
        arguments = ["resume", "two"]
    said = finish("resume", "two", "cluster.learner_ranks=1", "cluster.rollout_workers=0")
    assert "exact" in said
    assert "not exact" not in said
    compare(project / "one", out, steps)


FSDP = [*HOST, "cluster.sharding=fsdp"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["lora.rank=4", "cluster.rollout_workers=1"]], ids=["whole", "lora"])
def test_the_first_step_of_a_run_in_shards_is_that_of_one_process(project: Path, more: list[str]) -> None:
    once = ["run.steps=1", "model.dtype=float32", "learner.minibatches=1", *more]
    finish("train", "recipe.toml", *HOST, *once, "--out", "one")
    finish("train", "recipe.toml", *FSDP, *once, "cluster.learner_ranks=2", "--out", "two")
    one, two = (metrics_of(project / out)[0] for out in ("one", "two"))
    for key in ("optim/grad_norm", "policy/entropy", "policy/loss", "policy/mismatch"):
        assert two[key] == about(one[key]), key


@pytest.mark.slow
def test_without_a_cluster_there_is_no_nursery_and_no_socket_is_open(project: Path) -> None:
    """In a process of its own, as other tests have imported Ray and left sockets here."""
    code = """
import sys, oncurve, psutil
def look(_):
    own = psutil.Process()
    assert own.net_connections() == []
    assert "ray" not in sys.modules
    assert not any("nursery" in word for child in own.children(recursive=True) for word in child.cmdline())
    print("looked")
oncurve.train("recipe.toml", steps=1, out="out", on_step=look).close()
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, "looked" in ended.stdout) == (0, True), ended.stderr


LAGGED = [*WORKERS, *EPISODES, *table("cluster_runs", "lagged")]


@pytest.mark.slow
def test_a_run_with_a_lag_has_the_same_bits_after_stops_with_other_processes_and_when_it_is_made_longer(
    project: Path,
) -> None:
    """Of episodes; one of single completions is killed on the host and on Ray in `test_ray_runs`."""
    finish("train", "recipe.toml", *LAGGED, "--out", "one")
    out = project / "two"
    arguments = ["train", "recipe.toml", *LAGGED, "run.steps=6", "cluster.rollout_workers=2", "--out", "two"]
    for number, again in (
        (signal.SIGKILL, ["cluster.learner_ranks=2"]),
        (signal.SIGINT, ["cluster.rollout_workers=3", "cluster.learner_ranks=1"]),
    ):
        process = start(*arguments)
        until_checkpoints(process, out, len(durable.numbered(out / "checkpoints")) + 1)
        time.sleep(random.random() / 10)
        said = kill_all(process, number)
        assert number == signal.SIGKILL or "stopped by SIGINT; to continue after step" in said
        arguments = ["resume", "two", *again]
    said = finish(*arguments)
    assert "Step n trains what the weights after step n - 3 wrote, exactly" in said
    assert "not exact" not in said
    said = finish("resume", "two", "run.steps=8", "cluster.rollout_workers=0")
    assert "not exact" not in said
    compare(project / "one", out, 8)
