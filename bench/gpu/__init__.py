"""The CUDA forms on a GPU: their correctness, then their speed. `python -m bench.gpu --out gpu.json`"""
