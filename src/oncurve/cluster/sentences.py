"""Sentences of the plan about a cluster."""

from __future__ import annotations

from oncurve.cluster.facts import LEAST_ROWS
from oncurve.cluster.keys import ProcessSettings


def sentences_of(cluster: ProcessSettings) -> list[str]:
    """Return how rollouts and updates are shared."""
    many = "s added in a fixed tree, or fewer where they would take more than twice the processor time of one"
    shards = f"{cluster.gradient_shards} gradient shard{many * (cluster.gradient_shards > 1)}"
    ranks = f"{cluster.learner_ranks} process{'es' * (cluster.learner_ranks > 1)}"
    threads = f"{cluster.rank_threads} thread{'s' * (cluster.rank_threads > 1)}"
    workers = f"{cluster.rollout_workers} other process{'es' * (cluster.rollout_workers > 1)}"
    own = f"{cluster.worker_threads} thread{'s' * (cluster.worker_threads > 1)}"
    together = f"{cluster.shard_groups} group{'s' * (cluster.shard_groups > 1)} and {LEAST_ROWS} rows at least"
    kept = ", and keep them in the host's memory" if cluster.offload else ""
    servers = "a vLLM server" if cluster.rollout_workers == 1 else f"{cluster.rollout_workers} vLLM servers"
    return [
        f"Rollouts are sampled by {servers}: they are not exact, and the learner computes the old log-probs."
        if cluster.served
        else f"Rollouts are decoded by {workers} with {own} each, {together} "
        "together: the number of processes, and losses of them, change no bit."
        if cluster.rollout_workers
        else f"Rollouts are decoded by this process with {own}, {together} together.",
        *_lag(cluster),
        f"An update is made by {ranks} of {cluster.where} with {threads} each, which divide parameters, gradients "
        f"and optimizer state{kept}: their number changes results by rounding, and after the loss of one the run "
        "goes back to its last checkpoint."
        if cluster.divided
        else f"An update is made by {ranks} of {cluster.where} with {threads} each, in {shards}: their number, and "
        "losses of them, change no bit.",
    ]


def _lag(cluster: ProcessSettings) -> list[str]:
    if not cluster.lag:
        return []
    ahead = f"{cluster.lag} step{'s' * (cluster.lag > 1)}"
    when = (
        f"those of up to {ahead} ahead are sampled while a step trains"
        if cluster.rollout_workers
        else "without rollout_workers that saves no time, and has the same bits as with them"
    )
    return [f"Step n trains what the weights after step n - {1 + cluster.lag} wrote, exactly; {when}."]
