"""Print the oldest or the newest versions of torch and transformers that pyproject.toml admits, as requirements.

python scripts/versions.py oldest|newest

The newest is whatever the index has within the bounds, the oldest the lower bound itself.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def requirements(which: str) -> list[str]:
    """Return a line for each of the two."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [line for line in project["dependencies"] if re.match(r"(torch|transformers)\b", line)]
    assert len(bounds) == 2
    return bounds if which == "newest" else [re.sub(r">=([\d.]+),.*", r"==\1.*", line) for line in bounds]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
