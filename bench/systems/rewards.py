"""The reward of every system: a hash, which costs nothing and differs between completions.

The file imports nothing of the benchmark, because oncurve runs it in a worker process, by its path.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

__all__ = ["hashed"]


def hashed(
    completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], constant: Sequence[bool], **_: Any
) -> list[float]:
    """In [0, 1), from the ids; 0.5 for constant groups. The signature is TRL's, which oncurve takes as well."""
    hashes = (zlib.crc32(json.dumps(list(ids)).encode()) / 2**32 for ids in completion_ids)
    return [0.5 if same else value for same, value in zip(constant, hashes, strict=True)]
