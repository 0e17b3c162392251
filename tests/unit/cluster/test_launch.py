import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path, PurePath

import pytest
import yaml

from oncurve.cluster import Job, KubeRay, Slurm, kuberay_manifest, slurm_script
from oncurve.errors import ConfigError

PODS = KubeRay("registry.example/oncurve:1", "runs")

JOB_FIELDS = {"backoffLimit", "shutdownAfterJobFinishes", "entrypoint", "submitterConfig", "rayClusterSpec"}
CLUSTER_FIELDS = {"authOptions", "headGroupSpec", "workerGroupSpecs"}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
"""Of ray.io/v1, as KubeRay's API reference publishes them."""

SRUN = """#!/bin/bash
tasks=1
while [[ "$1" == --* ]]; do
    case "$1" in --ntasks=*) tasks="${1#*=}" ;; esac
    shift
done
trap 'kill -TERM $(jobs -p) 2>/dev/null' TERM
for _ in $(seq "$tasks"); do "$@" & done
while [ -n "$(jobs -pr)" ]; do wait; done
"""

SCONTROL = """#!/bin/bash
case "$1" in
    show) tr , '\\n' <<< "$3" ;;
    requeue) echo "$2" >> "$REQUEUED" ;;
esac
"""

SMALL = ("run.steps=20", "eval.every=0", "rollout.group_size=2", "rollout.max_new_tokens=8", "data.prompts_per_step=4")

RAY_THAT_WAITS = """#!/bin/bash
case "$1" in
    status) for _ in $(seq "${NODES_UP:-9}"); do echo " 1 node_x"; done ;;
    start) echo "$$ $*" >> "$STARTED"; exec sleep 60 ;;
esac
"""

RAY_THAT_IS_SMALL = f"""#!/bin/bash
if [ "$1" = start ]; then
    shift
    exec {sys.executable} -m ray.scripts.scripts start --object-store-memory=100000000 "$@"
fi
exec {sys.executable} -m ray.scripts.scripts "$@"
"""

TRAIN_THAT_SAYS_ITS_WORDS = f"""#!{sys.executable}
import json, os, signal, sys, time
json.dump(sys.argv[1:], open(os.environ["WORDS"], "w"))
if os.environ.get("LONG"):
    signal.signal(signal.SIGTERM, lambda *ignored: (time.sleep(0.5), os._exit(143)))
    open(os.environ["WORDS"] + ".up", "w").close()
    time.sleep(60)
sys.exit(int(os.environ.get("CODE", "0")))
"""


def job(**changes: object) -> Job:
    given = {"words": ["oncurve", "train", "task"], "folder": PurePath("runs/a"), "nodes": 2, "cpus": 2} | changes
    return Job(name="a-run", **given)  # type: ignore[arg-type]


class Bench:
    """A folder in which a job's script runs, with stand-ins for the scheduler on the path."""

    def __init__(self, folder: Path, **programs: str) -> None:
        self.folder, self.requeued, self.words = folder, folder / "requeued", folder / "words"
        self.output = folder / "output"
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, **programs}.items():
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
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
            return subprocess.Popen(
                ["bash", "-c", text],
                cwd=self.folder,
                env=self.environment | variables,
                stderr=output,
                stdout=output,
            )

    def finished(self, text: str, seconds: float = 120, **variables: str) -> tuple[int, str]:
        process = self.start(text, **variables)
        return process.wait(timeout=seconds), self.output.read_text()

    def rays(self) -> list[tuple[int, str]]:
        """The processes that were started as Ray's, the head first, and their command lines."""
        lines = sorted((self.folder / "started").read_text().splitlines(), key=lambda line: "--head" not in line)
        return [(int(line.split()[0]), line) for line in lines]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, ray=RAY_THAT_WAITS, oncurve=TRAIN_THAT_SAYS_ITS_WORDS)


def wait_for(condition: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_script_starts_ray_on_all_nodes_trains_and_ends_ray(bench: Bench) -> None:
    code, errors = bench.finished(slurm_script(job(), Slurm()))
    assert code == 0, errors
    head, other = bench.rays()
    assert "--head" in head[1]
    assert "--address=127.0.0.1:" in other[1]
    assert gone(head[0])
    assert gone(other[0])
    words = json.loads(bench.words.read_text())
    assert words[:-1] == ["train", "task", "--out", "runs/a", "--resume-if-there"]
    assert words[-1] in (f"cluster.address={other[1].split('--address=')[1].split()[0]}",)
    assert not bench.requeued.exists()


def test_words_arrive_as_they_were_given(bench: Bench) -> None:
    strange = ["model.path=a 'b\" $HOME `id` $(id) \\ *", "data.template={{ x }} {% y %} ${#z[@]}\nnext"]
    text = slurm_script(job(words=["oncurve", "train", *strange], folder=PurePath("runs/it's $HOME")), Slurm())
    code, errors = bench.finished(text)
    assert code == 0, errors
    words = json.loads(bench.words.read_text())
    assert words[1:3] == strange
    assert words[4] == "runs/it's $HOME"


def test_at_the_time_limit_the_run_ends_in_order_and_the_job_queues_again(bench: Bench) -> None:
    process = bench.start(slurm_script(job(), Slurm()), LONG="1")
    wait_for(Path(f"{bench.words}.up").exists, 20)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=20) == 143
    assert bench.requeued.read_text().split() == [bench.environment["SLURM_JOB_ID"]]
    assert all(gone(ray) for ray, _ in bench.rays())


def test_a_job_that_is_cancelled_does_not_queue_again(bench: Bench) -> None:
    process = bench.start(slurm_script(job(), Slurm()), LONG="1")
    wait_for(Path(f"{bench.words}.up").exists, 20)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    assert not bench.requeued.exists()


@pytest.mark.parametrize("code", [1, 2])
def test_a_run_that_fails_gives_the_job_its_exit_code(bench: Bench, code: int) -> None:
    assert bench.finished(slurm_script(job(nodes=1), Slurm()), CODE=str(code))[0] == code
    assert not bench.requeued.exists()


def test_a_node_that_does_not_join_ends_the_job(bench: Bench) -> None:
    text = slurm_script(job(), Slurm())
    assert "START_SECONDS=600" in text
    code, errors = bench.finished(text.replace("START_SECONDS=600", "START_SECONDS=2"), NODES_UP="1")
    assert code == 1
    assert "not all nodes have joined Ray within 2 seconds" in errors
    assert all(gone(ray) for ray, _ in bench.rays())
    assert not bench.words.exists()


def test_a_ray_that_ends_at_once_ends_the_job(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ray="#!/bin/bash\nexit 1\n", oncurve=TRAIN_THAT_SAYS_ITS_WORDS)
    code, errors = bench.finished(slurm_script(job(), Slurm()))
    assert code == 1
    assert "Ray has ended on a node" in errors


def test_a_script_has_no_secret_and_says_what_it_asks_for() -> None:
    text = slurm_script(job(memory="64G"), Slurm("1-12:00:00", "gpu", "team"))
    for line in ("--nodes=2", "--cpus-per-task=2", "--mem=64G", "--time=1-12:00:00", "--partition=gpu", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    assert "#SBATCH --account=team\n" in text
    assert "/dev/urandom" in text  # the token is drawn where the job runs
    assert text == slurm_script(job(memory="64G"), Slurm("1-12:00:00", "gpu", "team"))


def test_the_manifest_has_fields_that_kuberay_publishes() -> None:
    found = yaml.safe_load(kuberay_manifest(job(memory="8Gi"), PODS))
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    spec, cluster = found["spec"], found["spec"]["rayClusterSpec"]
    assert set(spec) <= JOB_FIELDS
    assert set(cluster) <= CLUSTER_FIELDS
    (workers,) = cluster["workerGroupSpecs"]
    assert set(workers) <= GROUP_FIELDS
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 1
    assert spec["backoffLimit"] == 10
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        (container,), (volume,) = pod["containers"], pod["volumes"]
        assert container["image"] == PODS.image
        assert container["resources"]["limits"] == {"cpu": "2", "memory": "8Gi"}
        assert volume["persistentVolumeClaim"]["claimName"] == "runs"
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": container["workingDir"]}]


def test_a_manifest_of_one_node_has_no_workers() -> None:
    found = yaml.safe_load(kuberay_manifest(job(nodes=1), PODS))
    assert found["spec"]["rayClusterSpec"]["workerGroupSpecs"] == []


def test_the_entrypoint_runs_the_words_as_they_were_given() -> None:
    words = ["oncurve", "train", "a b.toml", 'model.path="x" $HOME', "data.template=é\n: - #"]
    entry = yaml.safe_load(kuberay_manifest(job(words=words), PODS))["spec"]["entrypoint"]
    assert shlex.split(entry)[4 : 4 + len(words)] == words
    shown = entry.replace("cd /oncurve && exec oncurve", "printf '%s\\0'")
    arrived = subprocess.run(
        ["sh", "-c", shown],
        env={"RAY_ADDRESS": "10.0.0.1:6379"},
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    ).stdout.split("\0")
    assert arrived[:-1] == [
        *words[1:],
        "--out",
        "runs/a",
        "--resume-if-there",
        "cluster.address=10.0.0.1:6379",
    ]


@pytest.mark.parametrize(
    ("slurm", "memory", "option"),
    [
        (Slurm(time="soon"), None, "--time"),
        (Slurm(partition="a b"), None, "--partition"),
        (Slurm(partition="a\n#SBATCH --wrap=x"), None, "--partition"),
        (Slurm(account="$(id)"), None, "--account"),
        (Slurm(), "64Gi", "--memory"),
    ],
)
def test_what_a_line_of_sbatch_cannot_hold_is_refused(slurm: Slurm, memory: str | None, option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option}: "):
        slurm_script(job(memory=memory), slurm)


@pytest.mark.parametrize(
    ("kuberay", "memory", "option"),
    [
        (KubeRay("an image", "runs"), None, "--image"),
        (KubeRay("image", "Runs!"), None, "--claim"),
        (KubeRay("image", "runs"), "64GB", "--memory"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused(kuberay: KubeRay, memory: str | None, option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option}: "):
        kuberay_manifest(job(memory=memory), kuberay)


def test_nodes_that_are_too_small_are_refused() -> None:
    assert job(processes=4).processes == 4
    with pytest.raises(ConfigError, match="room for 4 processes of 1 thread, and the run has 5"):
        job(processes=5)
    with pytest.raises(ConfigError, match="room for 2 processes of 2 threads"):
        job(processes=3, threads=2)


@pytest.mark.slow
def test_a_script_trains_on_a_real_ray_is_stopped_at_the_limit_and_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ray=RAY_THAT_IS_SMALL)
    words = ["oncurve", "train", "task", "cluster.kind=ray", "cluster.rollout_workers=1", "cluster.learner_ranks=2"]
    text = slurm_script(job(words=[*words, *SMALL]), Slurm())
    metrics = tmp_path / "runs/a/metrics.jsonl"
    process = bench.start(text)
    try:
        wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 1, 240)
    finally:
        process.send_signal(signal.SIGUSR1)
        code = process.wait(timeout=120)
    assert code == 143, bench.output.read_text()
    assert bench.requeued.exists()
    done = len(metrics.read_text().splitlines())
    assert 1 <= done < 20
    code, errors = bench.finished(text, 240)
    assert code == 0, errors
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert {row["cluster/workers_alive"] for row in rows} == {1.0}
    assert {row["cluster/ranks"] for row in rows} == {2.0}
