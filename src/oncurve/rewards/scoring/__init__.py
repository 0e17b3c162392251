"""From groups to scores: the set of rewards of a run, scored while sampling goes on, and tried before it."""
