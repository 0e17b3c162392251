"""The benchmark: oncurve, TRL and rlox at the same work on one machine, for `docs/performance.md`.

`make bench-quick` and `make bench` set up an environment of its own first.

    compare/     the main table, the correctness gate, the machine's limits, group advantages
    growth/      how time and memory grow with the sizes of a step
    learning/    seconds of training until the tiny model solves its task
    gpu/         the CUDA forms on a GPU
    single/      single measurements, each a command of its own
    report/      the tables and plots of `docs/performance.md`
    systems/     oncurve, TRL and rlox, each in a worker process

What the parts share stands here: cases, models, timing, the machine, the results' file.
"""
