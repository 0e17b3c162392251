"""Metrics of the processes that a run uses in addition to its own; absent with cluster.learner_ranks = 1."""

from oncurve.metrics.metric import Metric

CLUSTER_METRICS: tuple[Metric, ...] = (
    Metric("cluster/ranks", "last", "processes").described(
        "ranks that made the step's last update, rank 0 included",
        "How many processes shared the work. The result does not depend on it.",
        "Below cluster.learner_ranks: ranks were lost, and the output says why.",
    ),
    Metric("cluster/ranks_lost", "sum", "processes").described(
        "ranks that ended, or were ended because they hung",
        "Losses of ranks since the step before. What they had was computed again, to the same bits.",
        "Not 0 again and again: read the first cause in the output; killed by SIGKILL usually means that the "
        "machine's memory ran out, and fewer cluster.learner_ranks need less.",
    ),
    Metric("cluster/updates_redone", "sum", "updates").described(
        "attempts at an update that lost a rank before the update was made",
        "How often the work of an update was done again.",
        "As for cluster/ranks_lost.",
    ),
    Metric("cluster/wait_seconds", "sum", "seconds").described(
        "time for which rank 0 waited for the answers of other ranks, over the step's updates and scores",
        "The imbalance of the ranks, and the time of their copies and restarts.",
        "A large share of time/update: the shards are of unequal cost, because single completions are long, or the "
        "machine has fewer cores than cluster.learner_ranks times cluster.rank_threads.",
    ),
)
