"""What Inductor makes of oncurve's compiled functions for an H100, on a machine without a GPU: a program, for a test.

    python compile_for_gpu.py     prints JSON: for each function its kernels' PTX, in the order of their launches

Fake CUDA tensors go through Dynamo and Inductor, which ask for nothing but the device's properties; Triton compiles the
kernels. Nothing is run. The patches are of torch 2.11 to 2.13 and hold for the whole process, so it is one of its own.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

import torch
import torch._inductor.config
import torch._subclasses.fake_tensor
import triton
from torch import Tensor
from torch._dynamo.exc import TorchRuntimeError
from torch._inductor.compile_fx import compile_fx
from torch._inductor.fx_passes import fuse_attention, joint_graph, misc_patterns, pad_mm
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from triton.backends.compiler import GPUTarget

from fakes.tables import table
from oncurve.models.decode import graph_buffers
from oncurve.models.head import linear_logprobs
from oncurve.models.layers import elementwise, rms_norm

TARGET = GPUTarget("cuda", 90, 32)
H100 = SimpleNamespace(**table("h100", "properties"))


def answer(value: Any) -> Any:
    return lambda *_, **__: value


class Driver:
    launcher_cls = utils = None
    get_current_target = answer(TARGET)
    get_current_device = get_current_stream = answer(0)
    get_active_torch_device = answer(torch.device("cuda", 0))
    get_device_interface = answer(torch.cuda)
    get_benchmarker = answer(answer(0.0))
    is_active = answer(True)


def pretend() -> None:
    """Let torch.cuda and Triton answer as on a machine with an H100."""
    answers = {
        "is_available is_initialized is_bf16_supported": True,
        "device_count": 1,
        "current_device _exchange_device _maybe_exchange_device": 0,
        "get_device_properties _get_device_properties": H100,
        "get_device_capability": (9, 0),
        "get_device_name": H100.name,
        "_lazy_init set_rng_state synchronize set_device": None,
        "get_rng_state": torch.empty(0),
        "current_stream": SimpleNamespace(cuda_stream=0),
    }
    for names, value in answers.items():
        for name in names.split():
            setattr(torch.cuda, name, answer(value))
    for name in ("getDevice", "setDevice", "getCurrentRawStream", "exchangeDevice", "maybeExchangeDevice"):
        setattr(torch._C, f"_cuda_{name}", answer(0))
    torch.version.cuda = "13.0"
    torch._subclasses.fake_tensor.init_gpu_context = answer(None)
    torch._inductor.config.joint_graph_constant_folding = False
    for module in (fuse_attention, joint_graph, pad_mm, misc_patterns):
        for name in ("_sfdp_init", "_pad_mm_init", "_misc_patterns_init", "_mkldnn_rnn_init"):
            if hasattr(module, name):
                setattr(module, name, answer(None))
    triton.runtime.driver.set_active(Driver())
    triton_helpers.set_driver_to_gpu = triton_helpers.set_driver_to_cpu = answer(None)
    triton_heuristics.CachingAutotuner.precompile = precompile


KERNELS: list[list[str]] = []
"""Of each kernel the PTX, one per configuration that Inductor would try."""


def precompile(tuner: Any, *_: Any, **__: Any) -> None:
    KERNELS.append([compiled(tuner, config) for config in tuner.configs])
    tuner.launchers = [SimpleNamespace(config=tuner.configs[0])]


def compiled(tuner: Any, config: Any) -> str:
    names, constants = tuner.fn.arg_names, {**tuner.triton_meta.get("constants", {}), **config.kwargs}
    constants = {name: value for name, value in constants.items() if name in names}
    kinds = {name: "constexpr" if name in constants else tuner.triton_meta["signature"].get(name) for name in names}
    source = triton.compiler.ASTSource(tuner.fn, {n: kind or "constexpr" for n, kind in kinds.items()}, constants, {})
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    ptx: str = triton.compile(source, target=TARGET, options=options).asm["ptx"]
    return ptx


class CompiledError(Exception):
    """Everything is compiled, and nothing is run."""


def backend(graph: Any, inputs: Any, **_: Any) -> Any:
    compile_fx(graph, inputs)

    def never(*_: Any) -> None:
        raise CompiledError

    return never


def plain(function: Any) -> Any:
    """The function that is compiled; one that has no other is returned as it is."""
    return getattr(function, "__wrapped__", function)


def cuda(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda")


def calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments as in Qwen2.5-0.5B."""
    single, whole = torch.float32, torch.int64
    x, weight, turned = cuda(4096, 896, dtype=single), cuda(896), (cuda(4096, 14, 64), cuda(4096, 1, 64))
    gates = cuda(4096, 4864), cuda(4096, 4864)
    logits = cuda(2200, 15232)
    return {
        "_normed": (partial(plain(rms_norm._normed), weight=weight, eps=1e-6), (x,)),
        "_differentiated": (
            partial(plain(rms_norm._differentiated), weight=weight, with_weight=True),
            (x, cuda(4096, 896), cuda(4096, 1, dtype=single)),
        ),
        "_rotate": (elementwise._rotate, (*turned, turned[1])),
        "_rotate_back": (elementwise._rotate_back, (*turned, turned[1])),
        "_gate": (elementwise._gate, gates),
        "_gate_back": (elementwise._gate_back, (*gates, gates[0], True)),
        "_moments": (
            partial(plain(linear_logprobs._moments), temperature=1.0, with_mean=True, truncated=False),
            (logits,),
        ),
        "_gradient": (linear_logprobs._gradient, (logits, logits, cuda(2200, 1, dtype=single), 1.0, None, False)),
        "uniform_at": (graph_buffers._uniforms, (cuda(256, dtype=whole), cuda(256, dtype=whole))),
        "_advance": (
            graph_buffers._advance,
            (
                cuda(256, dtype=whole),
                cuda(6, 256, dtype=whole),
                cuda(256, 16, dtype=torch.int32),
                cuda(2, dtype=whole),
            ),
        ),
    }


def main() -> None:
    pretend()
    found = {}
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True), torch.no_grad():
        for name, (function, given) in calls().items():
            KERNELS.clear()
            torch._dynamo.reset()
            try:
                torch.compile(plain(function), dynamic=True, backend=backend, fullgraph=True)(*given)
            except CompiledError:
                found[name] = list(KERNELS)
            except TorchRuntimeError as error:  # some operations on fake tensors ask for the CUDA build
                if "not linked with support for cuda" not in str(error):
                    raise
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
