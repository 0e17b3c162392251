"""Decoding: prefill, caches, CUDA graphs, the rows in them, and the token loops.

on a CPU    host_loop, rows                            over cached_decoder, batched_cache
on CUDA     graph_loop, graph_buffers, cuda_graphs     over paged_attention, triton_kernels
on both     prefill, teacher_forcing
"""

from oncurve.models.decode.cached_decoder import CachedDecoder as CachedDecoder
from oncurve.models.decode.cuda_graphs import capture_on as capture_on
from oncurve.models.decode.graph_buffers import GraphBuffers as GraphBuffers
from oncurve.models.decode.graph_loop import GraphLoop as GraphLoop
from oncurve.models.decode.host_loop import HostLoop as HostLoop
from oncurve.models.decode.prefill import Run as Run
from oncurve.models.decode.teacher_forcing import forced_logits as forced_logits
