import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.project import Said, lay_out, oncurve

Command = Callable[..., Said]

RECIPE = "recipe.toml"
ON_RAY = ("cluster.kind=ray", "cluster.rollout_workers=3")
PODS = ("--kuberay", "--image", "image:1", "--claim", "runs")


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("project"))


@pytest.fixture
def command(
    laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    shutil.copytree(laid_out, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: oncurve(arguments, monkeypatch, capfd)


def test_a_script_is_printed_and_bash_can_read_it(command: Command) -> None:
    said = command("launch", RECIPE, *ON_RAY, "--slurm")
    assert said.code == 0, said.err
    assert "#SBATCH --cpus-per-task=4\n" in said.out  # three workers, and the run's own process
    assert f"TRAIN=(oncurve train {RECIPE} {' '.join(ON_RAY)} --out" in said.out
    read = subprocess.run(["bash", "-n"], input=said.out, capture_output=True, text=True, timeout=10, check=False)
    assert (read.returncode, read.stderr) == (0, "")


def test_processors_are_shared_evenly_by_the_nodes(command: Command) -> None:
    said = command("launch", RECIPE, *ON_RAY, "cluster.worker_threads=4", "--slurm", "--nodes", "2")
    assert "#SBATCH --cpus-per-task=12\n" in said.out  # two workers of four threads on a node, and the run's own


def test_a_file_is_written_and_never_over_another(command: Command) -> None:
    assert command("launch", RECIPE, *ON_RAY, *PODS, "--out", "job.yaml").code == 0
    before = Path("job.yaml").read_text()
    assert "kind: RayJob" in before
    again = command("launch", RECIPE, *ON_RAY, *PODS, "--nodes", "2", "--out", "job.yaml")
    assert again.code == 2
    assert "--out: job.yaml exists already" in again.err
    assert Path("job.yaml").read_text() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*ON_RAY], "name one scheduler: --slurm or --kuberay"),
        ([*ON_RAY, "--slurm", "--kuberay"], "name one scheduler: --slurm or --kuberay"),
        (["--slurm"], 'set cluster.kind to "ray"'),
        (["cluster.kind=host", "cluster.rollout_workers=2", "--slurm"], 'set cluster.kind to "ray"'),
        (["cluster.kind=ray", "--slurm"], "the run has one process and needs no cluster"),
        ([*ON_RAY, "cluster.address=10.0.0.1:6379", "--slurm"], "cluster.address: the job starts a Ray"),
        ([*ON_RAY, "--slurm", "--cpus", "2"], "room for 2 processes of 1 thread, and the run has 3 other ones"),
        ([*ON_RAY, "--slurm", "--image", "x"], "--image: it has no meaning with --slurm"),
        ([*ON_RAY, "--slurm", "--retries", "0"], "--retries: it has no meaning with --slurm"),
        ([*ON_RAY, *PODS, "--partition", "x"], "--partition: it has no meaning with --kuberay"),
        ([*ON_RAY, "--kuberay", "--claim", "runs"], "--image: name the image"),
        ([*ON_RAY, "--kuberay", "--image", "x"], "--claim: name a volume claim"),
        ([*ON_RAY, "--slurm", "--out", "none/job.sh"], "--out: none/job.sh cannot be written"),
        ([*ON_RAY, "--slurm", "--name", "two words"], "--name: expected letters"),
        (["cluster.kind=Ray", "--slurm"], "cluster.kind: unknown kind 'Ray'; did you mean 'ray'?"),
    ],
)
def test_what_makes_no_job_is_refused(command: Command, words: list[str], message: str) -> None:
    said = command("launch", RECIPE, *words)
    assert said.code == 2
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
