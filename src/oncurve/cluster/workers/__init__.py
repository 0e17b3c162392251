"""A rollout engine of several workers.

engine.py       the engine: shards to workers, and again where one is lost
queue.py        the fixed shards of the prompts, and which of them wait; timing.py: their deadlines
worker.py       the process that decodes
weights.py      one version of the weights on its way to workers: through memory, a folder or a broadcast (broadcast.py)
"""

from oncurve.cluster.workers.broadcast import BUCKET_SECONDS as BUCKET_SECONDS, Broadcast as Broadcast
from oncurve.cluster.workers.engine import FleetEngine as FleetEngine
from oncurve.cluster.workers.queue import Lost as Lost, rollout_shards as rollout_shards
from oncurve.cluster.workers.weights import (
    Carrier as Carrier,
    DiskCarrier as DiskCarrier,
    ObjectCarrier as ObjectCarrier,
    Snapshot as Snapshot,
)
from oncurve.cluster.workers.worker import Brought as Brought, Worker as Worker
