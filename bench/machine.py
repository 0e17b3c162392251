"""The machine and the software of a run: processor, instruction set, memory, versions, commit, load."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["available_bytes", "code_hash", "describe", "has_bf16", "kind", "limited", "load"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "trl", "rlox", "accelerate", "tokenizers", "numpy")
SHARED = ("bench/cases.py", "bench/models.py", "bench/timing.py")
OWN = {
    "gate": ("bench/compare/gate.py", "tests/oracles/plain_grpo/*.py"),
    "cells": ("bench/compare/cells.py", "bench/compare/roofline.py", "bench/systems/*.py"),
    "growth": ("bench/growth/*.py",),
    "advantages": ("bench/compare/group_advantages.py",),
    "learning": ("bench/learning/*.py",),
}
"""The files that each part is measured with, besides the package."""
INSTRUCTION_SETS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
SHORT = {"amx_bf16": "amx", "avx512_bf16": "avx512bf16", "avx512f": "avx512", "avx2": "avx2"}


def _cpuinfo() -> dict[str, str]:
    file = Path("/proc/cpuinfo")
    if not file.is_file():
        return {}
    first = file.read_text().partition("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def limited() -> bool:
    """Return whether torch is held to AVX2, as `scripts/instruction_sets.py` does it."""
    return os.environ.get("ATEN_CPU_CAPABILITY") == "avx2"


def has_bf16() -> bool:
    """Return whether the processor computes in bf16: an x86 without it emulates it, and no system is compared so."""
    return not (flags := _flags()) or bool(flags & {"amx_bf16", "avx512_bf16"})


def _flags() -> set[str]:
    """Return the instruction sets that may be used here."""
    flags = set(_cpuinfo().get("flags", "").split())
    return {flag for flag in flags if not flag.startswith(("amx", "avx512"))} if limited() else flags


def describe() -> dict[str, Any]:
    """Return the machine and the software, for the head of the results."""
    info = _cpuinfo()
    flags = _flags()
    return {
        "processor": info.get("model name", platform.processor() or platform.machine()),
        "instruction_sets": [name for name in INSTRUCTION_SETS if name in flags],
        "amx": "amx_bf16" in flags,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str:
    """Return the commit, and whether the working tree differs from it."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "src", "bench", ":!bench/results"], cwd=ROOT, capture_output=True
        )
    except OSError:
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def code_hash(part: str) -> str:
    """Return a hash of everything that can change a figure of this part: the package, and the part's own files."""
    seen = hashlib.sha256()
    for pattern in ("src/**/*.py", *SHARED, *OWN.get(part, ())):
        for file in sorted(ROOT.glob(pattern)):
            seen.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return seen.hexdigest()[:12]


def kind() -> str:
    """Return a short name of the machine, for the results' file: `xeon-amx-2core`."""
    info = _cpuinfo()
    words = info.get("model name", platform.machine()).lower()
    family = next((name for name in ("xeon", "epyc", "core", "ryzen", "apple", "arm") if name in words), "cpu")
    flags = _flags()
    best = next((short for flag, short in SHORT.items() if flag in flags), "")
    return "-".join(part for part in (family, best, f"{os.cpu_count()}core") if part)


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def available_bytes() -> int:
    """Return memory available without swapping, within the control group's limit (Linux); elsewhere all memory."""
    file = Path("/proc/meminfo")
    if not file.is_file():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":", 1) for line in file.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
        return min(free, int(limit.read_text()) - int(used.read_text()))
    return free
