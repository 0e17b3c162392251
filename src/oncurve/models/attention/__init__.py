"""Attention over packed rows: the hook in transformers, the kernels, and how partial softmaxes are merged."""
