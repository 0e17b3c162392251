"""The benchmark: oncurve, TRL and rlox at the same work on one machine, for `docs/performance.md`.

`make bench-quick` and `make bench` set up an environment of its own first.

    compare/     the main table, the correctness gate, the machine's limits, group advantages
    growth/      how time and memory grow with the sizes of a step
    learning/    seconds of training until the tiny model solves its task; every preset trained
    scaling/     published step times next to simulated ones
    gpu/         the CUDA forms on a GPU
    single/      LoRA next to TRL; the plan next to what runs take
    cluster/     workers, ranks, a lag and kills
    report/      the tables and plots of `docs/performance.md`
    systems/     oncurve, TRL and rlox, each in a worker process

What the parts share stands here: cases, models, timing, the machine, the results' file.
"""
