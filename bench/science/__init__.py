"""Experiments about the algorithms, on the built-in task; `docs/science.md` is written from their results."""
