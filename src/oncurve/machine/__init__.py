"""The machine: threads and heap, shared processors, what the bits of a result depend on, compiled kernels."""
