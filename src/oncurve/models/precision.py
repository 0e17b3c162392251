"""What a model computes in: bfloat16 where this machine multiplies it natively, else float32.

Without native support a bfloat16 product is emulated: slower than float32, and rounder. So `"auto"` asks the hardware,
not the library, which would take both.
"""

from __future__ import annotations

from typing import Literal

import torch

__all__ = ["DTYPES", "Precision", "native_bfloat16", "resolved"]

Precision = Literal["auto", "float32", "bfloat16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_CPU_FEATURES = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "sve_bf16": "SVE BF16", "bf16": "NEON BF16"}
"""What `torch.cpu.get_capabilities` calls a processor's bfloat16 products, fastest first, and what people call them."""


def native_bfloat16(device: torch.device) -> tuple[bool, str]:
    """Whether `device` multiplies bfloat16 matrices in hardware, and what says so."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        found = torch.cuda.is_bf16_supported(including_emulation=False)
        return found, f"{name} has {'native' if found else 'no native'} bfloat16"
    if device.type != "cpu":
        return False, f"nothing is known of bfloat16 on {device.type}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False, "this torch has no oneDNN, which bfloat16 products need"
    features = torch.cpu.get_capabilities()
    for feature, name in _CPU_FEATURES.items():
        if features.get(feature, False):
            return True, f"the processor has {name}"
    return False, "the processor has no bfloat16 products"


def resolved(wanted: Precision, device: torch.device) -> tuple[Literal["float32", "bfloat16"], str]:
    """What `wanted` means on `device`, and why; what was asked for by name is what it is."""
    if wanted != "auto":
        return wanted, "as model.dtype says"
    native, why = native_bfloat16(device)
    return "bfloat16" if native else "float32", f'model.dtype = "auto": {why}'
