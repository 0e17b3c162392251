"""The benchmark: oncurve beside TRL and rlox, the same work in each, on this machine. See `docs/performance.md`.

Run it with `make bench-quick` or `make bench`, which set up its own environment first.
"""
