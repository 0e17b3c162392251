"""Attention over packed rows: the hook in transformers, and the kernels."""
