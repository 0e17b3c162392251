"""Workers that have a vLLM server in place of an engine of their own.

engine.py   the worker's engine, over HTTP
server.py   a server: its start, its routes, its faults
guard.py    the server's own part: no answer without its key
"""

from oncurve.cluster.vllm.engine import VllmEngine
from oncurve.cluster.vllm.server import vllm_program
