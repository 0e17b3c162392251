import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fakes.started import start_process
from fakes.waiting import gone, until

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = Path(__file__).parents[1] / "programs"
"""Stand-ins for the programs of a scheduler, and a Ray that waits."""

SLURM = (EXAMPLES / "slurm.sh").read_text(encoding="utf-8")

JOB_FIELDS = {"backoffLimit", "shutdownAfterJobFinishes", "entrypoint", "submitterConfig", "rayClusterSpec"}
CLUSTER_FIELDS = {"authOptions", "headGroupSpec", "workerGroupSpecs"}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
"""Of ray.io/v1, as KubeRay's API reference publishes them."""


TRAIN_THAT_SAYS_ITS_WORDS = f"""#!{sys.executable}
import json, os, signal, sys, time
json.dump(sys.argv[1:], open(os.environ["WORDS"], "w"))
if os.environ.get("LONG"):
    signal.signal(signal.SIGTERM, lambda *ignored: (time.sleep(0.5), os._exit(143)))
    open(os.environ["WORDS"] + ".up", "w").close()
    time.sleep(600)
sys.exit(int(os.environ.get("CODE", "0")))
"""


class Bench:
    """A folder in which a job's script runs, with stand-ins for the scheduler on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.requeued, self.words = folder, folder / "requeued", folder / "words"
        self.output = folder / "output"
        bin_folder = shutil.copytree(PROGRAMS, folder / "bin")
        (bin_folder / "oncurve").write_text(TRAIN_THAT_SAYS_ITS_WORDS)
        (bin_folder / "oncurve").chmod(0o755)
        path = f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {
            **os.environ,
            "PATH": path,
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NODELIST": "localhost,localhost",
            "REQUEUED": str(self.requeued),
            "WORDS": str(self.words),
            "STARTED": str(folder / "started"),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, text: str, **variables: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            streams = {"stderr": output, "stdout": output, "env": self.environment | variables}
            return start_process("bash", "-c", text, cwd=self.folder, **streams)

    def finished(self, text: str, **variables: str) -> tuple[int, str]:
        process = self.start(text, **variables)
        return process.wait(timeout=300), self.output.read_text()

    def rays(self) -> list[tuple[int, str]]:
        """The processes that were started as Ray's, the head first, and their command lines."""
        lines = sorted((self.folder / "started").read_text().splitlines(), key=lambda line: "--head" not in line)
        return [(int(line.split()[0]), line) for line in lines]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_script_starts_ray_on_all_nodes_trains_and_ends_ray(bench: Bench) -> None:
    code, errors = bench.finished(SLURM)
    assert code == 0, errors
    head, other = bench.rays()
    assert "--head" in head[1]
    assert "--address=127.0.0.1:" in other[1]
    assert gone(head[0])
    assert gone(other[0])
    words = json.loads(bench.words.read_text())
    assert words[:2] == ["train", "gsm8k"]
    assert words[-4:-1] == ["--out", "runs/gsm8k", "--resume-if-there"]
    assert words[-1] in (f"cluster.address={other[1].split('--address=')[1].split()[0]}",)
    assert not bench.requeued.exists()


def test_at_the_time_limit_the_run_ends_in_order_and_the_job_queues_again(bench: Bench) -> None:
    process = bench.start(SLURM, LONG="1")
    until(Path(f"{bench.words}.up").exists, 120.0)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=120) == 143
    assert bench.requeued.read_text().split() == [bench.environment["SLURM_JOB_ID"]]
    assert all(gone(ray) for ray, _ in bench.rays())


def test_a_job_that_is_cancelled_does_not_queue_again(bench: Bench) -> None:
    process = bench.start(SLURM, LONG="1")
    until(Path(f"{bench.words}.up").exists, 120.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 143
    assert not bench.requeued.exists()


@pytest.mark.parametrize("code", [1, 2])
def test_a_run_that_fails_gives_the_job_its_exit_code(bench: Bench, code: int) -> None:
    assert bench.finished(SLURM, CODE=str(code))[0] == code
    assert not bench.requeued.exists()


def test_a_node_that_does_not_join_ends_the_job(bench: Bench) -> None:
    assert "START_SECONDS=600" in SLURM
    code, errors = bench.finished(SLURM.replace("START_SECONDS=600", "START_SECONDS=2"), NODES_UP="1")
    assert code == 1
    assert "not all nodes have joined Ray within 2 seconds" in errors
    assert all(gone(ray) for ray, _ in bench.rays())
    assert not bench.words.exists()


def test_the_manifest_has_fields_that_kuberay_publishes() -> None:
    found = yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text(encoding="utf-8"))
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    spec, cluster = found["spec"], found["spec"]["rayClusterSpec"]
    assert set(spec) <= JOB_FIELDS
    assert set(cluster) <= CLUSTER_FIELDS
    (workers,) = cluster["workerGroupSpecs"]
    assert set(workers) <= GROUP_FIELDS
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        (container,), (volume,) = group["template"]["spec"]["containers"], group["template"]["spec"]["volumes"]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": container["workingDir"]}]
