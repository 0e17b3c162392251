"""A learner whose ranks divide the model among them by FSDP2.

sharded.py          rank 0's side, the `Learner` of the run, and the other ranks' side, in a fleet
shard_learner.py    what each rank computes, and its file in a checkpoint
divided.py          models whose parameters are shards, and a rank's recipe without weights
connection.py       ranks join, leave, and send each other what they have a part of
"""

from oncurve.cluster.sharding.divided import Outline, offloading
from oncurve.cluster.sharding.sharded import ShardedLearner, ShardRank
