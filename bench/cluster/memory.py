"""The memory of processes, as the kernel counts it."""

from pathlib import Path

import psutil


def memory_of_ranks() -> list[dict[str, int]]:
    """Return `process_memory` of this process, rank 0, and of the processes that its nurseries have forked."""
    nurseries = [child for child in psutil.Process().children() if any("nursery" in word for word in child.cmdline())]
    forks = [fork.pid for nursery in nurseries for fork in nursery.children()]
    return [process_memory(), *map(process_memory, sorted(forks))]


def process_memory(process: int | str = "self") -> dict[str, int]:
    """Return bytes of a process alone, without the pages that it shares with others, libraries and files.

    `peak` since the last call, `now`, and `shared`: what it has in memory in addition. 0 where the system does not say.
    """
    try:
        status = _kilobytes(process, "status")
        pages = _kilobytes(process, "smaps_rollup")
        Path(f"/proc/{process}/clear_refs").write_text("5")
    except OSError:
        return {"peak": 0, "now": 0, "shared": 0}
    own = pages["Private_Dirty"]
    shared = pages["Rss"] - own
    return {"peak": 1024 * (status["VmHWM"] - shared), "now": 1024 * own, "shared": 1024 * shared}


def _kilobytes(process: int | str, name: str) -> dict[str, int]:
    lines = Path(f"/proc/{process}/{name}").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
