"""Tensors on their way to the disk: one at a time, so that those made on demand never stand in memory together."""

from __future__ import annotations

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
"""What the safetensors format calls torch's types."""


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each made when it is asked for: a model's worth of them need not exist at one time."""

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
    """Write a safetensors file with the umask's mode, a tensor at a time: what a mapping makes on demand is not kept.

    Tied tensors are written once each, strided ones packed. The file says `format: pt`, without which transformers
    before 5 refuses it. Raises OSError.
    """
    found = {name: (tensors[name].dtype, list(tensors[name].shape)) for name in tensors}
    order = sorted(found, key=lambda name: (-found[name][0].itemsize, name))  # wide ones first: all are aligned
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
            tensor = tensors[name].detach().cpu().contiguous()
            file.write(tensor.view(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(mode & 0o666)
