"""Models back to a directory in Hugging Face form, so that they load in transformers as they are.

Tensors go to the disk one after another: those that are made when they are asked for (a learner's masters in two
halves) never stand in memory together. transformers writes all else, and says under which names it wants the tensors.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from oncurve.durable import LazyTensors, write_directory
from oncurve.errors import ModelError
from oncurve.models.quiet import quiet

__all__ = ["save"]

WEIGHTS = "model.safetensors"


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
            their names. Each is asked for when it is written, and let go of.
        dtype: floating tensors are written in this; None: as they are.

    Raises:
        ModelError: `state` has a tensor that the model has not.
        OncurveError: the disk refuses.
    """
    tensors = _stand_in(module, state or {}, dtype)
    if not hasattr(module, "save_pretrained"):
        write_directory(directory, {WEIGHTS: tensors})
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=directory.parent) as name, quiet():
        folder, network, weights = Path(name), cast(Any, module), {}
        names = _names_on_disk(network, folder)
        if names is None:  # transformers converts this model's tensors on their way, so it needs them all
            network.save_pretrained(folder, state_dict=dict(tensors))  # it empties what it is given
        else:
            (folder / WEIGHTS).unlink()
            weights = {WEIGHTS: LazyTensors(names, lambda written: tensors[names[written]])}
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files: dict[str, bytes | Mapping[str, Tensor]] = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in paths
        }
        files["config.json"] = _with_dtype(folder / "config.json", tensors)
        write_directory(directory, files | weights)


def _names_on_disk(network: Any, folder: Path) -> dict[str, str] | None:
    """What transformers calls each tensor that it writes, and that tensor's name in the model; None: it changes them.

    It is asked by saving a model of single numbers, tied ones tied: so `folder` has all the other files afterwards.
    """
    own = network.state_dict(keep_vars=True)
    marks: dict[int, Tensor] = {}
    for tensor in own.values():
        marks.setdefault(tensor.data_ptr(), torch.tensor([float(len(marks))]))
    names = {int(marks[tensor.data_ptr()]): name for name, tensor in own.items()}
    try:
        network.save_pretrained(folder, state_dict={name: marks[tensor.data_ptr()] for name, tensor in own.items()})
        written = load_file(folder / WEIGHTS)
    except Exception:  # whatever a conversion makes of a single number
        return None
    if any(mark.shape != (1,) for mark in written.values()) or {int(mark) for mark in written.values()} != set(names):
        return None
    return {name: names[int(mark)] for name, mark in written.items()}


def _with_dtype(path: Path, tensors: Mapping[str, Tensor]) -> bytes:
    """The configuration with the dtype of what was written, which need not be the module's."""
    config = json.loads(path.read_bytes())
    floating = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(floating) == 1:
        config["dtype"] = str(floating.pop()).removeprefix("torch.")
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def _stand_in(module: nn.Module, state: Mapping[str, Tensor], dtype: torch.dtype | None) -> LazyTensors:
    """The module's tensors with `state` in the place of its own, tied ones together, in `dtype`."""
    own = {name: tensor.detach() for name, tensor in module.state_dict(keep_vars=True).items()}
    if unknown := set(state) - set(own):
        raise ModelError(f"the model has no tensor {sorted(unknown)[0]!r}")
    stands_for = {own[name].data_ptr(): name for name in state}

    def make(name: str) -> Tensor:
        given = name if name in state else stands_for.get(own[name].data_ptr())
        chosen = own[name] if given is None else state[given].detach()
        wanted = dtype if dtype is not None and chosen.is_floating_point() else chosen.dtype
        return chosen.to(dtype=wanted, device="cpu")

    return LazyTensors(own, make)
