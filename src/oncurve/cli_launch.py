"""The command that writes a job for a scheduler: `oncurve launch`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncurve.cli_groups import Data, Overrides, Preset, Recipe, Reward
from oncurve.errors import ConfigError, command
from oncurve.output import say

if TYPE_CHECKING:
    from oncurve.cluster import JobText


def launch(
    recipe: Recipe,
    overrides: Overrides = None,
    data: Data = None,
    reward: Reward = None,
    preset: Preset = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="A script for sbatch.")] = False,
    kuberay: Annotated[bool, typer.Option("--kuberay", help="A RayJob, for kubectl.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; it must not exist yet.")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="The run's folder (default: runs/<recipe>-<model>).")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The job's name (default: the run's).")] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Machines.", min=1, max=4096)] = 1,
    cpus: Annotated[
        int | None, typer.Option("--cpus", help="Processors per node (default: what the processes need).", min=1)
    ] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory per node: 64G, for KubeRay 64Gi.")] = None,
    time: Annotated[
        str | None, typer.Option("--time", help="Slurm: the time limit, after which it goes on (default: 24:00:00).")
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="Slurm: the partition.")] = None,
    account: Annotated[str | None, typer.Option("--account", help="Slurm: the account.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="KubeRay: the image, with oncurve and Ray.")] = None,
    claim: Annotated[
        str | None, typer.Option("--claim", help="KubeRay: the name of a volume claim for the runs.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option("--retries", help="KubeRay: how often it starts again (default: 10).", min=0)
    ] = None,
) -> None:
    """Print a job that starts Ray on a cluster's nodes and trains there, for Slurm or Kubernetes.

    A job that is started again continues its run.
    """
    from oncurve.run import command_config, job_of, write_job

    if slurm == kuberay:
        raise ConfigError("name one scheduler: --slurm or --kuberay")
    of_slurm = {"--time": time, "--partition": partition, "--account": account}
    of_kuberay = {"--image": image, "--claim": claim, "--retries": retries}
    foreign = [option for option, value in (of_kuberay if slurm else of_slurm).items() if value is not None]
    if foreign:
        raise ConfigError(f"{foreign[0]}: it has no meaning with {'--slurm' if slurm else '--kuberay'}; leave it out")
    text = _slurm(time, partition, account) if slurm else _kuberay(image, claim, retries)
    config, _, called = command_config(recipe, overrides or [], data, reward or [], preset or [], "launch")
    words = ["oncurve", "train", recipe, *(overrides or [])]
    words += [] if data is None else ["--data", data]
    words += [word for each in reward or [] for word in ("--reward", each)]
    words += [word for each in preset or [] for word in ("--preset", each)]
    printed = write_job(job_of(config, called, words, run, name, nodes, cpus, memory), text, out)
    if printed is not None:
        say(printed)
    else:
        say(f"wrote {out}; look through it, then: {'sbatch' if slurm else 'kubectl apply -f'} {command(out)[8:]}")


def _slurm(time: str | None, partition: str | None, account: str | None) -> JobText:
    from oncurve.cluster import Slurm, slurm_script

    return partial(slurm_script, slurm=Slurm(time or Slurm.time, partition, account))


def _kuberay(image: str | None, claim: str | None, retries: int | None) -> JobText:
    from oncurve.cluster import KubeRay, kuberay_manifest

    if image is None or claim is None:
        lacking = "--image" if image is None else "--claim"
        what = "the image of the pods, with oncurve and Ray in it" if image is None else "a volume claim for the runs"
        raise ConfigError(f"{lacking}: name {what}")
    return partial(kuberay_manifest, kuberay=KubeRay(image, claim, KubeRay.retries if retries is None else retries))
