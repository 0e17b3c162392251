"""The experiments of docs/science.md: `python -m bench.science all`."""
