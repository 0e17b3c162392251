"""Decoding: prefill, caches, CUDA graphs, the rows in them, and the token loops.

on a CPU    host_loop, rows                            over cached_decoder, batched_cache
on CUDA     graph_loop, graph_buffers, cuda_graphs     over paged_attention, triton_kernels
on both     prefill, teacher_forcing
"""
