"""A rollout engine of several workers.

engine.py       the engine: fixed shards of the prompts to workers, and again where one is lost
worker.py       the process that decodes, and one version of the weights on its way to it
"""

from oncurve.cluster.workers.worker import Snapshot, Worker
from oncurve.cluster.workers.worker_engine import FleetEngine, rollout_shards
