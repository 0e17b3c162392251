"""The machine: its rates by name or by measurement, and its memory.

The limits of `counting` need three numbers of a machine. Here they are measured (`rehearsal`), and its memory
is the smallest of all limits.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

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
    source: str = "written down from memory"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
"""Machines and models by name."""

MACHINES = {name: Machine(name, **row | {"memory": row["memory"] * GIB}) for name, row in TABLES["machines"].items()}

_QUANTITY = re.compile(r"(\d[\d_,]*(?:\.\d+)?(?:e\+?\d+)?)\s*([kmbgt]?)(i?)b?(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


def parse_quantity(text: str, option: str, like: str) -> float:
    """Return the number that `"80GiB"`, `"4300GB/s"`, `"24e9"`, `"7B"` or `"7_000_000"` says.

    Raises ConfigError, naming the option and what it is `like`, for anything else.
    """
    found = _QUANTITY.fullmatch(text.strip())
    factor = 1.0 if found is None else (1024.0 if found[3] else 1000.0) ** _POWERS[found[2].lower()]
    value = 0.0 if found is None else factor * float(found[1].replace("_", "").replace(",", ""))
    if not 0 < value < MOST:
        raise ConfigError(f"{option} {shown(text)}: expected a number above 0, like {like}")
    return value


def machine(name: str, memory: str | None) -> Machine:
    """Return a machine by name, with `memory` in place of its own. Raises ConfigError: an unknown name, no amount."""
    full = TABLES["aliases"].get(name.lower(), name.lower())
    if full not in MACHINES:
        raise ConfigError(
            f"--machine {shown(name)}: unknown{suggest(name, MACHINES) or '; there are: ' + ', '.join(MACHINES)}"
        )
    found = MACHINES[full]
    return found if memory is None else replace(found, memory=parse_quantity(memory, "--memory", "80GiB"))


@dataclass(frozen=True)
class AvailableMemory:
    """The memory available to this process, in bytes, and the limit that decides it."""

    available: float
    limit: str


def memory_here(root: Path = Path("/")) -> AvailableMemory:
    """Return the memory available to this process: the machine's free memory, or what its control groups leave.

    Memory that this process holds already counts as available, because a plan counts the whole process; so do file
    caches, which the kernel can free. `root` stands in for `/`, for tests.
    """
    import psutil

    own = psutil.Process().memory_info().rss
    memory = psutil.virtual_memory()
    limits = [AvailableMemory(memory.available + own, "the machine's free memory")]
    limits += [
        AvailableMemory(max(limit - used, 0.0) + own, name)
        for name, limit, used in _groups(root)
        if limit < memory.total
    ]
    return min(limits, key=lambda limit: limit.available)


def _groups(root: Path) -> Iterator[tuple[str, float, float]]:
    """Yield limit and use of this process's memory groups and of all above them, version 2 and 1, where limited."""
    try:
        lines = [line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for controllers, path in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        version, top = (1, root / "sys/fs/cgroup/memory") if controllers else (2, root / "sys/fs/cgroup")
        limited, used, cache = _GROUP_FILES[version]
        folder = top / path.strip("/")
        for place in (folder, *folder.parents):
            limit = number_in(place / limited)
            if limit is not None:
                where = "/" + place.relative_to(top).as_posix().removeprefix(".")
                reclaimable = number_in(place / "memory.stat", cache) or 0.0
                yield f"cgroup v{version} {limited} of {where}", limit, (number_in(place / used) or 0.0) - reclaimable
            if place == top:
                break


_GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By version: the files of limit and use, and the key of the inactive file cache in `memory.stat`."""


def number_in(path: Path, key: str = "") -> float | None:
    """Return the number in a file, or on its line that begins with `key`; None: there is no file, or "max" in it."""
    try:
        words = path.read_text().split()
        return float(words[words.index(key) + 1 if key else 0])
    except (OSError, ValueError, IndexError):
        return None
