"""More processes than one: the ranks of a learner, the workers of a rollout, and the fleets that they run in.

settings.py      the kinds of `[cluster]`
facts.py         what other parts need to know of them
making.py        what a cluster does, the settings of all kinds that have several processes, and how these are made
ranks/           a learner of several ranks that each have the whole model
sharding/        a learner whose ranks divide the model among them by FSDP2
workers/         a rollout engine of several workers, which decode fixed shards by one version of the weights
vllm/            workers that have a vLLM server in place of an engine of their own

Covered: copied ranks and workers that are killed, that hang or are stopped, that cannot connect or fail with an error,
at any time; a nursery that is killed; a run that is killed. None of them changes a bit of the result.
A rank with a part of the model that is lost sends the run back to its last checkpoint, and on to the same bits.
With vLLM servers no fault ends a run either, but the tokens are vLLM's, and so are not those of one process.
Built and not run: GPUs (processes/fleets/devices.py).
Not covered: shards of a model on GPUs, ranks of a critic, the training of reward models.
"""

from oncurve.cluster.facts import ClusterFacts
from oncurve.cluster.making import Cluster
from oncurve.cluster.settings import CLUSTER_KINDS, HostCluster, check_cluster, cluster_meant
from oncurve.cluster.workers import Snapshot, Worker
