"""A frozen base in 4 bits per weight, under an adapter: QLoRA (Dettmers et al. 2023, arXiv:2305.14314).

    nf4             16 levels, quantiles of a normal distribution, scaled by the largest weight of each block of 64
    double quant    the scales of the blocks are quantised, too: 0.37 bits per weight less
    compute         a product unpacks its weights to the model's dtype

bitsandbytes has the kernels. Not measured: oncurve's tests have no GPU for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import torch

from oncurve.base.errors import ModelError

Quantization = Literal["nf4"]


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
