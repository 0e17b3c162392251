"""A learner whose ranks divide the model among them by FSDP2.

sharded.py          rank 0's side, the `Learner` of the run, and the other ranks' side, in a fleet
shard_learner.py    what each rank computes
divided.py          models whose parameters are shards
adapter_rows.py     the reference of a policy with an adapter
connection.py       ranks join, and leave
outline.py          a rank's recipe without weights, which rank 0 sends
exchange.py         gathers and reductions between ranks on processors
sharded_files.py    a checkpoint's file per rank
"""

from oncurve.cluster.sharding.outline import Outline as Outline, offloading as offloading
from oncurve.cluster.sharding.sharded import ShardedLearner as ShardedLearner, ShardRank as ShardRank
