"""Facts of a cluster that other parts need."""

from dataclasses import dataclass

LEAST_ROWS = 16
"""Rows that are decoded together at least: they take twice the processor time of 64, and 8 rows three times."""


@dataclass(frozen=True)
class ClusterFacts:
    """Facts of a cluster; the defaults are those of one process.

    alone            one process does everything, as if there were no `[cluster]`
    on_this_machine  all processes are on this machine, whose memory they need
    processes        that each hold a policy with its optimizer
    divided          these processes divide the policy and its optimizer among them
    offload          what they divide is in the memory of their hosts
    workers          processes that each hold a policy to sample from, in addition
    shard_groups     groups that a worker decodes together, or as many as have `LEAST_ROWS`
    lag              step n trains what the weights after step n - 1 - lag wrote
    served           vLLM servers sample: they take and give token ids alone, and are not exact
    least_rows       that a worker decodes together
    """

    alone: bool = True
    on_this_machine: bool = True
    processes: int = 1
    divided: bool = False
    offload: bool = False
    workers: int = 0
    shard_groups: int = 1
    lag: int = 0
    served: bool = False
    least_rows: int = LEAST_ROWS

    def idle_workers(self, groups: int, group_size: int) -> int:
        """Return how many workers have nothing to do in a rollout of so many groups."""
        together = self.shard_groups if self.served else groups_together(self.shard_groups, group_size)
        return max(0, self.workers - -(-groups // together))


def groups_together(shard_groups: int, group_size: int) -> int:
    """Return how many groups of a rollout are decoded together."""
    return max(shard_groups, -(-LEAST_ROWS // group_size))
