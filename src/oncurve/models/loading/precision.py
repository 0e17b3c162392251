"""The precision of a model's computation: bfloat16 where this machine multiplies it natively, else float32.

Without native support a bfloat16 product is emulated: slower than float32, and less exact. So `"auto"` depends on the
hardware, not on the library, which supports both.

A frozen base under an adapter may have 4 bits per weight: QLoRA (Dettmers et al. 2023, arXiv:2305.14314).

    nf4             16 levels, quantiles of a normal distribution, scaled by the largest weight of each block of 64
    double quant    the scales of the blocks are quantised, too: 0.37 bits per weight less
    compute         a product unpacks its weights to the model's dtype

bitsandbytes has the kernels. Not measured: oncurve's tests have no GPU for it.
"""

from importlib import import_module
from typing import Any, Literal

import torch

from oncurve.base.errors import ModelError

Precision = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["nf4"]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
"""By name: those of `Precision`, and those of a module that is handed in."""

_CPU_FEATURES = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "sve_bf16": "SVE BF16", "bf16": "NEON BF16"}
"""`torch.cpu.get_capabilities`'s names of a processor's bfloat16 products, fastest first, and their usual names."""


def native_bfloat16(device: torch.device) -> tuple[bool, str]:
    """Return whether `device` multiplies bfloat16 matrices in hardware, and the evidence for it."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        found = torch.cuda.is_bf16_supported(including_emulation=False)
        return found, f"{name} has {'native' if found else 'no native'} bfloat16"
    if device.type != "cpu":
        return False, f"nothing is known of bfloat16 on {device.type}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False, "this torch lacks oneDNN, which bfloat16 products need"
    features = torch.cpu.get_capabilities()
    for feature, name in _CPU_FEATURES.items():
        if features.get(feature, False):
            return True, f"the processor has {name}"
    return False, "the processor has no bfloat16 products"


def resolved(wanted: Precision, device: torch.device) -> tuple[Literal["float32", "bfloat16"], str]:
    """Return the dtype of `wanted` on `device`, and why."""
    if wanted != "auto":
        return wanted, "as model.dtype says"
    native, why = native_bfloat16(device)
    return "bfloat16" if native else "float32", f'model.dtype = "auto": {why}'


def device_of(device: str, section: str) -> torch.device:
    """Return the device that the setting `<section>.device` names. Raises ModelError: there is no CUDA device."""
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ModelError(f'{section}.device = "cuda", but torch sees no CUDA device; use "auto" or "cpu"')
    return torch.device("cuda" if available and device != "cpu" else "cpu")


def quantization_config(kind: Quantization, dtype: torch.dtype, device: torch.device) -> Any:
    """transformers' configuration for loading a base quantised, whose products are computed in `dtype`.

    Raises ModelError: the device is a CPU, or bitsandbytes is not installed.
    """
    if device.type != "cuda":
        raise ModelError(
            f'model.quantization = "{kind}" needs a CUDA device, and the model is on a {device.type.upper()}, where '
            "every product would unpack its weights again, slower than bfloat16; leave it out"
        )
    try:
        import_module("bitsandbytes")
    except ImportError as error:
        raise ModelError(
            f"model.quantization needs bitsandbytes ({error}); install it with: pip install 'oncurve[qlora]'"
        ) from error
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=torch.uint8,
    )
