"""A rollout engine of several workers.

engine.py       the engine: shards to workers, and again where one is lost
queue.py        the fixed shards of the prompts, and which of them wait
worker.py       the process that decodes
weights.py      one version of the weights on its way to workers
"""

from oncurve.cluster.workers.engine import FleetEngine as FleetEngine
from oncurve.cluster.workers.queue import rollout_shards as rollout_shards
from oncurve.cluster.workers.weights import Snapshot as Snapshot
from oncurve.cluster.workers.worker import Worker as Worker
