"""A recipe as a job of a scheduler: what `oncurve launch` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from oncurve.cluster import Job, JobText, ProcessCluster
from oncurve.config import RunConfig, check_complete
from oncurve.errors import ConfigError
from oncurve.paths import usable_path
from oncurve.run.naming import run_name


def job_of(
    config: RunConfig,
    recipe: str,
    words: Sequence[str],
    folder: Path | None = None,
    name: str | None = None,
    nodes: int = 1,
    cpus: int | None = None,
    memory: str | None = None,
) -> Job:
    """The job that trains by `config`, on as many processors as the processes of its `[cluster]` need.

    words   of the command, from `oncurve` on
    folder  the run's; None: `runs/` and the run's name
    name    the job's; None: the run's
    cpus    of each node; None: what the processes need, shared evenly

    Raises ConfigError: the settings are not those of a run on a Ray cluster, or the nodes are too small for it.
    """
    check_complete(config)
    cluster, address = cast("ProcessCluster", config.cluster), getattr(config.cluster, "address", None)
    if address is None:
        raise ConfigError(
            'cluster.kind: a job starts a Ray cluster, and the run has to use it; set cluster.kind to "ray", and '
            "cluster.rollout_workers or cluster.learner_ranks to what it should have"
        )
    if address:
        raise ConfigError('cluster.address: the job starts a Ray and fills its address in; set it to ""')
    if cluster.learner_ranks == 1 and not cluster.rollout_workers:
        raise ConfigError(
            "cluster.rollout_workers: the run has one process and needs no cluster; raise it, or cluster.learner_ranks"
        )
    called = run_name(recipe, config)
    processes, threads = cluster.learner_ranks - 1 + cluster.rollout_workers, cluster.threads_per_process
    each = -(-processes // nodes) * threads + threads  # one process more: the command's own
    kept = usable_path(folder or Path("runs") / called, "--run")
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in called.lower())
    named = name or plain[:40].strip("-") or "oncurve"
    return Job(named, list(words), kept, nodes, cpus or each, processes, threads, memory)


def write_job(job: Job, text: JobText, out: Path | None) -> str | None:
    """The text of `job`, or None where it was written to the new file `out`. Raises ConfigError: it cannot be."""
    content = text(job)
    if out is None:
        return content.rstrip("\n")
    file = usable_path(out, "--out")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(content)
    except FileExistsError:
        raise ConfigError(f"--out: {file} exists already; name another file") from None
    except OSError as error:
        raise ConfigError(f"--out: {file} cannot be written: {error.strerror}") from error
    return None
