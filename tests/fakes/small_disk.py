"""A disk of a few megabytes that really is full: a tmpfs in a user's own namespace, for which no root is needed."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && cd "$2" && shift 2 && exec "$@"'


def on_small_disk(
    folder: Path, megabytes: int, arguments: Sequence[str], environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run Python with `arguments` in `folder`, which is a disk of its own for that process and empty at its start.

    Skips the test where the system does not allow that.
    """
    begin = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh", f"{megabytes}m", str(folder)]
    try:
        allowed = subprocess.run([*begin, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("a small disk needs user namespaces with mounts, which this system does not allow")
    return subprocess.run(
        [*begin, sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
