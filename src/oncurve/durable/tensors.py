"""Tensors written to the disk one at a time, so that those made on demand are never in memory together."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of torch's types in the safetensors format."""


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each made when it is read, so that they need not exist at the same time."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Tensor]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def write_tensors(path: Path, tensors: Mapping[str, Tensor], mode: int) -> None:
    """Write a safetensors file with the umask's mode, one tensor at a time; tensors made on demand are not kept.

    Tied tensors are written once each, strided ones packed. The metadata has `format: pt`, without which transformers
    before 5 refuses the file. Raises OSError.
    """
    found = {name: (tensors[name].dtype, list(tensors[name].shape)) for name in tensors}
    order = sorted(
        found, key=lambda name: (-found[name][0].itemsize, name)
    )  # wide types first, so that all are aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        dtype, shape = found[name]
        start, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(_bytes(tensors[name]))
        file.flush()
        os.fsync(file.fileno())
    path.chmod(mode & 0o666)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256, in hex, of the tensors' names, types, shapes and bytes. Nothing is written; one is read at a
    time.
    """
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's numbers, row by row."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
