"""More processes than one: the ranks of a learner, the workers of a rollout, and the fleets that they run in.

settings.py     the kinds of `[cluster]`, and what they share (processes.py)
launch.py       jobs for Slurm and KubeRay, which start a Ray cluster and train on it
fleet.py        the interface of a fleet, and the health of its processes as a state machine
host_fleet.py   a fleet on this machine, forked from a nursery (nursery.py, host_nursery.py), over sockets (channel.py)
                and shared memory (shared.py)
ray_fleet.py    a fleet on the machines of a Ray cluster (ray_session.py), where a keeper (keeper.py) starts the process
                that computes (kept.py)
learner.py      a learner of several ranks: rank 0 here, the others (rank.py) in a fleet
sharded.py      a learner whose ranks (shard_rank.py) divide the model among them by FSDP2 (shard_learner.py); its
                checkpoints have a file per rank (sharded_files.py)
engine.py       a rollout engine of several workers (worker.py), which decode fixed shards of the prompts (shards.py,
                queue.py) by one version of the weights (weights.py), which a broadcast (broadcast.py) can bring to all
vllm.py         workers that have a vLLM server (vllm_server.py, vllm_minder.py) in place of an engine of their own

Covered: copied ranks and workers that are killed, that hang or are stopped, that cannot connect or fail with an error,
at any time; a nursery that is killed; a run that is killed. None of them changes a bit of the result.
A rank with a part of the model that is lost sends the run back to its last checkpoint, and on to the same bits.
With vLLM servers no fault ends a run either, but the tokens are vLLM's, and so are not those of one process.
Built and not run: GPUs (devices.py), of one machine.
Not covered: GPUs of several machines, critics, the training of reward models.
"""

from oncurve.cluster.engine import FleetEngine as FleetEngine
from oncurve.cluster.fleet import (
    Ended as Ended,
    Failed as Failed,
    Fleet as Fleet,
    Health as Health,
    Kill as Kill,
    Replied as Replied,
    Start as Start,
)
from oncurve.cluster.host_fleet import HostFleet as HostFleet
from oncurve.cluster.launch import (
    Job as Job,
    JobText as JobText,
    KubeRay as KubeRay,
    Slurm as Slurm,
    kuberay_manifest as kuberay_manifest,
    slurm_script as slurm_script,
)
from oncurve.cluster.learner import FleetLearner as FleetLearner
from oncurve.cluster.processes import ProcessCluster as ProcessCluster
from oncurve.cluster.rank import Rank as Rank
from oncurve.cluster.ray_cluster import RayCluster as RayCluster
from oncurve.cluster.ray_fleet import RayFleet as RayFleet
from oncurve.cluster.settings import (
    CLUSTER_KINDS as CLUSTER_KINDS,
    Cluster as Cluster,
    HostCluster as HostCluster,
    NoCluster as NoCluster,
    check_cluster as check_cluster,
    cluster_meant as cluster_meant,
)
from oncurve.cluster.shards import rollout_shards as rollout_shards
from oncurve.cluster.weights import Snapshot as Snapshot
from oncurve.cluster.worker import Worker as Worker
