"""Illnesses of runs: rules with evidence, reason and the settings to change, over a live run or one on the disk.

A rule is a small object (`Rule`) over a `Case`: the metrics of the last steps and of the first ones, the last groups,
the settings. `Watch` tries all rules after each step of a run that goes on; `diagnose` does the same over the files
that a run has left. A new rule is a table of `rules.toml`, a function of its name, and a row of docs/doctor.md.

Covered: rewards that are all the same, and why; rates, KL, entropy, lengths; suspects of reward hacking; the gap
between sampler and learner; faults, time and memory. Not covered: whether a reward measures what it should.
"""

from oncurve.doctor.examine import Watch, diagnose, in_words
