"""The machine: its rates by data sheet or by measurement, and its memory.

The limits of `counting` need three numbers of a machine. On this machine they are measured (`rehearsal`), and its
memory is the smallest of all limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oncurve.base.errors import ConfigError, shown, suggest

GIB = 2**30
MOST = 1e24  # of bytes, or of FLOP/s: no machine has more


@dataclass(frozen=True)
class Machine:
    """Memory in bytes, matrix products in FLOP/s (bf16, dense), memory traffic in bytes a second; `source` of these.

    `dtype`: what `model.dtype = "auto"` is there. A card with "float32" has no bf16, and its rate is that of fp16.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float
    source: str = "data sheet"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


MACHINES: dict[str, Machine] = {
    "h200": Machine("h200", 139 * GIB, 790e12, 4.3e12, "measured"),
    "h100": Machine("h100", 79 * GIB, 989e12, 3.35e12),
    "h800": Machine("h800", 79 * GIB, 989e12, 3.35e12),
    "b200": Machine("b200", 178 * GIB, 2250e12, 8.0e12),
    "h20": Machine("h20", 95 * GIB, 148e12, 4.0e12),
    "a100-80": Machine("a100-80", 79 * GIB, 312e12, 2.04e12),
    "a100-40": Machine("a100-40", 39 * GIB, 312e12, 1.56e12),
    "v100-32": Machine("v100-32", 31.7 * GIB, 125e12, 0.9e12, dtype="float32"),
    "v100-16": Machine("v100-16", 15.7 * GIB, 125e12, 0.9e12, dtype="float32"),
    "l40s": Machine("l40s", 44 * GIB, 362e12, 0.864e12),
    "l4": Machine("l4", 22 * GIB, 121e12, 0.3e12),
    "a10g": Machine("a10g", 22 * GIB, 70e12, 0.6e12),
    "t4": Machine("t4", 14.5 * GIB, 65e12, 0.32e12, dtype="float32"),
    "rtx5090": Machine("rtx5090", 31.3 * GIB, 209.5e12, 1.792e12),
    "rtx4090": Machine("rtx4090", 23.6 * GIB, 165e12, 1.01e12),
    "rtx3090": Machine("rtx3090", 23.6 * GIB, 71e12, 0.936e12),
}
"""Cards by name. No card reaches the rates of its data sheet, so limits by data sheet are lower than by measurement."""

ALIASES = {"a100": "a100-80", "v100": "v100-16", "5090": "rtx5090", "4090": "rtx4090", "3090": "rtx3090"}

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]?)(i?)b?(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str, option: str) -> float:
    """`"80GiB"`, `"4300GB/s"`, `"24e9"` -> bytes. Raises ConfigError, naming the option, for anything else."""
    found = _QUANTITY.fullmatch(text.strip())
    value = 0.0 if found is None else float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].lower()]
    if found is None or not 0 < value < MOST:
        raise ConfigError(f"{option} {shown(text)}: expected an amount above 0 with a unit, like 80GiB or 4300GB/s")
    return value


def machine(name: str | None, memory: str | None, tflops: float | None, bandwidth: str | None) -> Machine:
    """A machine by name, with the other arguments in place of its numbers.

    Raises ConfigError: an unknown name, or none and not all three numbers.
    """
    full = ALIASES.get(name.lower(), name.lower()) if name is not None else None
    if name is not None and full not in MACHINES:
        raise ConfigError(
            f"--machine {shown(name)}: unknown{suggest(name, MACHINES) or '; there are: ' + ', '.join(MACHINES)}"
        )
    if tflops is not None and not 0 < tflops * 1e12 < MOST:
        raise ConfigError(f"--tflops {tflops:g}: give the card's dense bf16 rate, above 0")
    known = MACHINES[full] if full is not None else None
    if known is None and (memory is None or tflops is None or bandwidth is None):
        raise ConfigError(
            f"a machine is missing: name one with --machine ({', '.join(MACHINES)}), or give --memory 80GiB, "
            "--tflops 790 and --bandwidth 4300GB/s"
        )
    return Machine(
        "given" if known is None else known.name,
        known.memory if known is not None and memory is None else parse_bytes(memory or "", "--memory"),
        known.flops if known is not None and tflops is None else (tflops or 0.0) * 1e12,
        known.bandwidth if known is not None and bandwidth is None else parse_bytes(bandwidth or "", "--bandwidth"),
        "command line" if known is None or memory or tflops or bandwidth else known.source,
        "bfloat16" if known is None else known.dtype,
    )


@dataclass(frozen=True)
class AvailableMemory:
    """The memory available to this process, in bytes, and the limit that decides it. `total`: the limit as a whole."""

    available: float
    total: float
    limit: str


def memory_here(root: Path = Path("/")) -> AvailableMemory:
    """The memory available to this process: the smallest of the machine's free memory and of its control groups' rest.

    Memory that this process holds already counts as available, because a plan counts the whole process; so do file
    caches, which the kernel can free. `root` stands in for `/`, for tests.
    """
    import psutil

    own = psutil.Process().memory_info().rss
    memory = psutil.virtual_memory()
    limits = [AvailableMemory(memory.available + own, memory.total, "the machine's free memory")]
    for name, limit, used in _groups(root):
        if limit < memory.total:
            limits.append(AvailableMemory(max(limit - used, 0.0) + own, limit, name))
    return min(limits, key=lambda limit: limit.available)


def _groups(root: Path) -> list[tuple[str, float, float]]:
    """Limit and use of this process's control groups and of all above them, version 2 and 1, if limited."""
    found = []
    for version, folder in _group_folders(root):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        top = root / ("sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/memory")
        for place in (folder, *folder.parents):
            limit, used = _number(place / names[0]), _number(place / names[1])
            if limit is not None:
                cached = _cache(place / "memory.stat", "inactive_file" if version == 2 else "total_inactive_file")
                where = "/" + place.relative_to(top).as_posix().removeprefix(".")
                found.append((f"cgroup v{version} {names[0]} of {where}", limit, (used or 0.0) - cached))
            if place == top:
                break
    return found


def _group_folders(root: Path) -> list[tuple[int, Path]]:
    """The folders of this process's memory groups, as (version, folder); none where there are no control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            folders.append((2, root / "sys/fs/cgroup" / path.strip("/")))
        elif "memory" in controllers.split(","):
            folders.append((1, root / "sys/fs/cgroup/memory" / path.strip("/")))
    return folders


def _number(path: Path) -> float | None:
    """The number in a file; None where there is no file, or "max" in it."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def _cache(path: Path, key: str) -> float:
    """The inactive file cache in a group's memory, in bytes."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0.0
    return next((float(value) for name, value in pairs if name == key), 0.0)
