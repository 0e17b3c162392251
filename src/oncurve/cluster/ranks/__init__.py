"""A learner of several ranks: rank 0 in this process (learner.py), the others in a fleet (rank.py).

The gradient of an update is cut into shards (rank.py); conversation.py is for all learners of several ranks.
"""

from oncurve.cluster.ranks.conversation import RankedLearner as RankedLearner, joined as joined
from oncurve.cluster.ranks.learner import FleetLearner as FleetLearner
from oncurve.cluster.ranks.rank import GradientShards as GradientShards, Rank as Rank
