"""A learner of several ranks: rank 0 in this process (learner.py), the others in a fleet (rank.py).

The gradient of an update is cut into shards (queue.py).
"""

from oncurve.cluster.ranks.learner import FleetLearner as FleetLearner, joined as joined
from oncurve.cluster.ranks.rank import Rank as Rank
from oncurve.cluster.ranks.shards import GradientShards as GradientShards
