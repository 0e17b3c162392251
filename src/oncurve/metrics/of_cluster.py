"""Metrics of the processes that a run uses in addition to its own.

Those of ranks are absent with cluster.learner_ranks = 1, those of workers with cluster.rollout_workers = 0, and those
of the lag with cluster.lag = 0.
"""

from oncurve.metrics.metric import Metric

CLUSTER_METRICS: tuple[Metric, ...] = (
    Metric("cluster/ranks", "last", "processes").described(
        "ranks that made the step's last update, rank 0 included",
        'How many processes shared the work. With cluster.sharding = "fsdp" results depend on it by rounding, and '
        "otherwise not at all.",
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
    Metric("cluster/lag_mean", "mean", "updates").described(
        "mean over the trained completions of: updates of the policy before the step, less those that the weights had "
        "which sampled it",
        "How old the trained completions are. With cluster.lag = k and one update per step k, and less in the first "
        "k steps.",
        "Where learning is slower than with cluster.lag = 0: lower it, or set a [correction].",
    ),
    Metric("cluster/lag_max", "max", "updates").described(
        "the largest of the numbers whose mean is cluster/lag_mean",
        "The age of the oldest completion of the step.",
        "Far above cluster/lag_mean: groups that filter.dynamic_sampling kept are older than those around them.",
    ),
    Metric("cluster/wait_rollout_seconds", "sum", "seconds").described(
        "time for which a step waited until its groups were sampled and scored",
        "The part of the rollout that no update hid; with cluster.rollout_workers = 0 all of it.",
        "A large share of time/step: more cluster.rollout_workers. Near 0 at all times: fewer are enough.",
    ),
    Metric("cluster/rollout_busy", "last", "fraction").described(
        "seconds of the step in which a worker had a shard, or copied weights for it; the mean over "
        "cluster.rollout_workers; / time/step",
        "How much of the workers is used; the rest of the time they wait for new weights or for the last shard of a "
        "rollout, or their place is empty.",
        "Low, with cluster/wait_rollout_seconds high: there are fewer shards than workers, or one shard takes much "
        "longer than the others; lower cluster.shard_groups. Low without that wait: fewer workers are enough, or set "
        "cluster.lag.",
    ),
    Metric("cluster/learner_busy", "last", "fraction").described(
        "(time/score + time/update) / time/step",
        "How much of the step the learner works.",
        "Low: it waits for groups; see cluster/wait_rollout_seconds.",
    ),
    Metric("cluster/workers_alive", "last", "processes").described(
        "workers that could be given a shard at the end of the step's last rollout",
        "How many processes sampled. The result does not depend on it.",
        "Below cluster.rollout_workers: workers were lost, and the output says why.",
    ),
    Metric("cluster/workers_restarted", "sum", "processes").described(
        "workers that ended, or were ended because they hung; their places are filled again",
        "Losses of workers since the step before. Their shards were decoded again, to the same bits.",
        "Not 0 again and again: read the first cause in the output; killed by SIGKILL usually means that the "
        "machine's memory ran out, and fewer cluster.rollout_workers need less.",
    ),
    Metric("cluster/shards_redone", "sum", "shards").described(
        "shards of the step's rollouts that were lost with a worker",
        "How often the work of a rollout was done again.",
        "As for cluster/workers_restarted.",
    ),
    Metric("cluster/tokens_redone", "sum", "tokens").described(
        "tokens of the shards that were decoded again after they were lost with a worker",
        "The cost of losses of workers: at most so many tokens had been decoded before.",
        "As for cluster/workers_restarted.",
    ),
    Metric("cluster/weights_seconds", "sum", "seconds").described(
        "time for which rollouts waited until this process had copied the weights, once for all workers of a machine, "
        "or broadcast them, and computed their digest",
        "The cost of a new policy version for the rollout.",
        "A large share of time/rollout: fewer cluster.rollout_workers, more prompts per step, or an adapter "
        "(lora.rank), of which only the adapter is sent.",
    ),
    Metric("cluster/weights_bytes", "sum", "bytes").described(
        "bytes of the weights that workers got, all workers together",
        "The size of what changes in a step, times the workers that had a shard.",
        "As for cluster/weights_seconds.",
    ),
)
