"""A learner of several ranks: rank 0 in this process (learner.py), the others in a fleet (rank.py).

The gradient of an update is cut into shards (rank.py).
"""

from oncurve.cluster.ranks.learner import FleetLearner, RankedLearner, joined
from oncurve.cluster.ranks.rank import GradientShards, Rank
