"""Saving of models to a directory in Hugging Face form, which transformers loads as it is.

Tensors are written one at a time, so that those made on demand (a learner's masters in two halves) are never in memory
together. transformers writes all other files, and determines the names of the tensors.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.durable import LazyTensors, storage_errors, write_directory
from oncurve.models.adapters.adapter import Adapter
from oncurve.models.loading.hub import quiet

WEIGHTS = "model.safetensors"
ADAPTER = "adapter"
"""The folder of the adapter alone, in that of the model that it is merged into."""


def save(
    module: nn.Module,
    tokenizer: Any,
    directory: Path,
    state: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    adapter: Adapter | None = None,
    more: Mapping[str, bytes | Mapping[str, Tensor]] | None = None,
) -> None:
    """Write `module` and `tokenizer` to `directory` in Hugging Face form, whole or not at all.

    Args:
        module: a transformers model; of any other module only `model.safetensors` is written.
        tokenizer: None: none is written.
        directory: replaced if it exists.
        state: tensors that stand in for the module's own by name, such as float32 masters; tied weights under any of
            their names. Each is read when it is written, and freed.
        dtype: floating tensors are written in this; None: as they are.
        adapter: the adapter in `module`, which is merged into the weights, and written to the folder `adapter` in
            PEFT's form as well; `state` then names the tensors as `module` does. Over a quantised base that folder is
            all that is written.
        more: further files by their names in `directory`.

    Raises:
        ModelError: `state` has a tensor that the model has not.
        OncurveError: the disk refuses.
    """
    if adapter is not None:
        apart = {f"{ADAPTER}/{name}": content for name, content in adapter.files(state).items()}
        if adapter.quantized:
            write_directory(directory, apart)
            return
        merged = adapter.merged(state)
        with adapter.removed():
            save(module, tokenizer, directory, merged, dtype, more=apart)
        return
    tensors, more = _stand_in(module, state or {}, dtype), more or {}
    if not hasattr(module, "save_pretrained"):
        write_directory(directory, {WEIGHTS: tensors, **more})
        return
    needed = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    with storage_errors(directory, needed):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=directory.parent) as folder, quiet():
            files, weights = _files_of_transformers(module, tokenizer, tensors, Path(folder))
            write_directory(directory, {**files, **weights, **more})


def _files_of_transformers(
    module: nn.Module, tokenizer: Any, tensors: LazyTensors, folder: Path
) -> tuple[dict[str, bytes], dict[str, Mapping[str, Tensor]]]:
    """Return the files that transformers writes, by way of `folder`, and the weights, where they are not among
    these.
    """
    network, weights = cast(Any, module), {}
    names = _names_on_disk(network, folder)
    if names is None:  # transformers converts this model's tensors on their way, so it needs them all
        network.save_pretrained(folder, state_dict=dict(tensors))  # it empties what it is given
    else:
        (folder / WEIGHTS).unlink()
        weights = {WEIGHTS: LazyTensors(names, lambda written: tensors[names[written]])}
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    files["config.json"] = _with_dtype(folder / "config.json", tensors)
    return files, cast(dict[str, Mapping[str, Tensor]], weights)


def hub_tensors(module: nn.Module, adapter: Adapter | None = None) -> Iterator[tuple[str, Tensor]]:
    """Return the module's own tensors, detached, under the names that `save` writes them by; tied ones once.

    The `adapter` in the module is merged into the weights. Where transformers converts tensors as it writes them, all
    of them go through a temporary folder.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, network = Path(name), cast(Any, module)
        merged = None if adapter is None else adapter.merged()
        with nullcontext() if adapter is None else adapter.removed(), quiet():
            own = {name: tensor.detach() for name, tensor in module.state_dict(keep_vars=True).items()}
            if hasattr(module, "save_pretrained"):
                names = _names_on_disk(network, folder)
            else:
                first = {(tensor.data_ptr(), tensor.shape): name for name, tensor in reversed(own.items())}
                names = {name: name for name, tensor in own.items() if first[tensor.data_ptr(), tensor.shape] == name}
            tensors = own if merged is None else merged
            if names is None:
                (folder / WEIGHTS).unlink(missing_ok=True)
                network.save_pretrained(folder, state_dict=dict(tensors))
        if names is None:
            for path in sorted(folder.glob("*.safetensors")):
                yield from load_file(path).items()
        else:
            yield from ((written, tensors[name]) for written, name in names.items())


def _names_on_disk(network: Any, folder: Path) -> dict[str, str] | None:
    """Return the name on disk of each tensor that transformers writes, and its name in the model; None: it changes
    them.

    Found by saving a copy with one number per tensor, tied ones tied; `folder` then has all the other files.
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
    """Return the configuration with the dtype of what was written, which need not be the module's."""
    config = json.loads(path.read_bytes())
    floating = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(floating) == 1:
        config["dtype"] = str(floating.pop()).removeprefix("torch.")
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def _stand_in(module: nn.Module, state: Mapping[str, Tensor], dtype: torch.dtype | None) -> LazyTensors:
    """Return the module's tensors with `state` in the place of its own, tied ones together, in `dtype`."""
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
