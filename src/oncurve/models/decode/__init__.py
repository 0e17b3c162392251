"""Decoding: prefill, caches, CUDA graphs, the rows in them, and the token loops.

on a CPU    host_loop, rows                            over cached_decoder
on CUDA     graph_loop, graph_buffers                  over paged_attention, triton_kernels
on both     prefill
"""
