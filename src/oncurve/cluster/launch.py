"""Jobs that start a Ray cluster and train on it: a script for Slurm's sbatch, a RayJob for KubeRay.

    print(slurm_script(job))        sbatch FILE
    print(kuberay_manifest(job))    kubectl apply -f FILE

The texts are templates (`templates/slurm.sh.j2`, `templates/rayjob.yaml.j2`). No secret is in them: the token of a
Slurm job is drawn when it starts, and KubeRay draws its own. Both run `oncurve train ... --resume-if-there`, so a job
that is started again continues its run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath

import jinja2

from oncurve.errors import ConfigError, shown

MOUNT = "/oncurve"
"""Where the pods of a RayJob have the volume, in which the command runs."""

_WORD = (r"[A-Za-z0-9][A-Za-z0-9_.,@-]*", "letters, digits and _ . , @ -")
_LABEL = (r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", "at most 40 small letters, digits and - inside")
_CLAIM = (r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "small letters, digits, - and .")
_IMAGE = (r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "a name such as registry.example/team/oncurve:1")
_TIME = (r"\d+(:\d\d){0,2}|\d+-\d\d(:\d\d){0,2}", "minutes, or [days-]hours:minutes:seconds, such as 1-12:00:00")
_SLURM_MEMORY = (r"[1-9]\d*[KMGT]?", "a number and K, M, G or T, such as 64G")
_POD_MEMORY = (r"[1-9]\d*([KMGT]i?)?", "a number and Ki, Mi, Gi or Ti, such as 64Gi")


@dataclass(frozen=True)
class Job:
    """A run as a scheduler's job. Raises ConfigError: there are fewer processors than the run's processes need.

    name       of the job
    words      the command before `--out`: `["oncurve", "train", "r.toml", "run.seed=3"]`
    folder     the run's, which has to be the same each time that the job starts
    nodes      machines, the one of the command included
    cpus       processors of each
    processes  how many the run has in addition to its own
    threads    processors of each process
    memory     of each node, as the scheduler writes it; None: its default
    """

    name: str
    words: Sequence[str]
    folder: PurePath
    nodes: int
    cpus: int
    processes: int = 0
    threads: int = 1
    memory: str | None = None

    def __post_init__(self) -> None:
        room = self.nodes * (self.cpus // self.threads)
        if room < self.processes:
            raise ConfigError(
                f"--nodes {self.nodes} --cpus {self.cpus}: they have room for {room} processes of {self.threads} "
                f"thread{'s' * (self.threads > 1)}, and the run has {self.processes} other ones (learner_ranks - 1 "
                "and rollout_workers); raise --nodes or --cpus, or lower them in [cluster]"
            )


@dataclass(frozen=True)
class Slurm:
    """What sbatch alone is told. time: the limit, after which the job queues again, as Slurm writes it."""

    time: str = "24:00:00"
    partition: str | None = None
    account: str | None = None


@dataclass(frozen=True)
class KubeRay:
    """What a RayJob alone is told.

    image    of all pods, with oncurve and Ray in it
    claim    the name of a PersistentVolumeClaim for the runs, which all pods mount at `MOUNT`
    retries  how often the job is started again after a failure
    """

    image: str
    claim: str
    retries: int = 10


def slurm_script(job: Job, slurm: Slurm) -> str:
    """The script for sbatch. Raises ConfigError: a value that a line of `#SBATCH` cannot hold."""
    _check({"--name": (job.name, _WORD), "--time": (slurm.time, _TIME), "--memory": (job.memory, _SLURM_MEMORY)})
    _check({"--partition": (slurm.partition, _WORD), "--account": (slurm.account, _WORD)})
    words = {"words": shlex.join(job.words), "folder": shlex.quote(str(job.folder))}
    return _rendered("slurm.sh.j2", {**asdict(job), **asdict(slurm), **words})


def kuberay_manifest(job: Job, kuberay: KubeRay) -> str:
    """The RayJob. Raises ConfigError: a value that Kubernetes would refuse."""
    _check({"--name": (job.name, _LABEL), "--image": (kuberay.image, _IMAGE), "--claim": (kuberay.claim, _CLAIM)})
    _check({"--memory": (job.memory, _POD_MEMORY)})
    command = shlex.join([*job.words, "--out", str(job.folder), "--resume-if-there"])
    address = '"$RAY_ADDRESS"'  # Ray sets it for the commands of its jobs
    entry = f"cd {MOUNT} && exec {command} cluster.address={address}"
    return _rendered("rayjob.yaml.j2", {**asdict(job), **asdict(kuberay), "entrypoint": entry, "mount": MOUNT})


def _check(values: dict[str, tuple[str | None, tuple[str, str]]]) -> None:
    for option, (value, (pattern, words)) in values.items():
        if value is not None and re.fullmatch(pattern, value) is None:
            raise ConfigError(f"{option}: expected {words}, got {shown(value)}")


def _rendered(template: str, values: dict[str, object]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("oncurve", "templates"),
        autoescape=False,  # no HTML: values are quoted for the shell, or written as JSON
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{%#",  # the usual one is in the shell's ${#list[@]}
        comment_end_string="#%}",
    )
    environment.filters["tojson"] = json.dumps
    return environment.get_template(template).render(values)


JobText = Callable[[Job], str]
"""Writes a job for one scheduler."""
