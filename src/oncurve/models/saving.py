"""Models back to a directory in Hugging Face form, so that they load in transformers as they are."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.durable import write_directory
from oncurve.errors import ModelError
from oncurve.models.quiet import quiet

__all__ = ["save"]


def save(
    module: nn.Module,
    tokenizer: Any,
    directory: Path,
    state: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write `module` and `tokenizer` to `directory` in Hugging Face form, whole or not at all.

    Args:
        module: a transformers model; of any other module only `model.safetensors` is written.
        tokenizer: None: none is written.
        directory: replaced if it exists.
        state: tensors that stand in for the module's own by name, such as float32 masters; tied weights under any of
            their names.
        dtype: floating tensors are written in this; None: as they are.

    Raises:
        OncurveError: the disk refuses.
    """
    tensors = _stand_in(module, state or {}, dtype)
    if not hasattr(module, "save_pretrained"):
        write_directory(directory, {"model.safetensors": tensors})
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=directory.parent) as folder, quiet():
        network: Any = module
        network.save_pretrained(folder, state_dict=dict(tensors))  # it empties what it is given
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        files["config.json"] = _with_dtype(Path(folder, "config.json"), tensors)
        write_directory(directory, files)


def _with_dtype(path: Path, tensors: Mapping[str, Tensor]) -> bytes:
    """The configuration with the dtype of what was written, which need not be the module's."""
    config = json.loads(path.read_bytes())
    floating = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(floating) == 1:
        config["dtype"] = str(floating.pop()).removeprefix("torch.")
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def _stand_in(module: nn.Module, state: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The module's state with `state` in the place of its tensors, tied ones together, in `dtype`."""
    own = {name: tensor.detach() for name, tensor in module.state_dict(keep_vars=True).items()}
    if unknown := set(state) - set(own):
        raise ModelError(f"the model has no tensor {sorted(unknown)[0]!r}")
    written: dict[int, Tensor] = {}
    for name, tensor in state.items():
        written[own[name].data_ptr()] = tensor.detach()
    result = {}
    for name, tensor in own.items():
        chosen = state[name].detach() if name in state else written.get(tensor.data_ptr(), tensor)
        wanted = dtype if dtype is not None and chosen.is_floating_point() else chosen.dtype
        result[name] = chosen.to(dtype=wanted, device="cpu")
    return result
