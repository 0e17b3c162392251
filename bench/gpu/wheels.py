"""The wheels that a GPU machine without a network lacks, in one folder, with their size.

`python -m bench.gpu wheels DIR --python 3.12 --lacks pydantic,pydantic-core,...` fetches each in the version that
`constraints.txt` has, without what it needs: name that, too. oncurve's own wheel is always among them, since a run asks
for the installed version. There, `pip install --no-index --no-deps --target SITE DIR/*.whl` unpacks them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LACKS = (
    "annotated-types,antlr4-python3-runtime,cloudpickle,datasets,dill,httpcore2,httpx2,latex2sympy2-extended,"
    "math-verify,multiprocess,peft,pydantic,pydantic-core,tomli-w,truststore,typing-inspection"
)
GLIBC = (28, 27, 17, 5)


def main(arguments: list[str]) -> int:
    """Fetch the wheels and print their size. Returns pip's exit code where it fails."""
    parser = argparse.ArgumentParser(prog="bench.gpu wheels", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="the Python of that machine")
    parser.add_argument("--lacks", default=LACKS, help="what it does not have, separated by commas")
    chosen = parser.parse_args(arguments)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    platforms = [word for minor in GLIBC for word in ("--platform", f"manylinux_2_{minor}_x86_64")]
    fetch = [*pip, "download", "--no-deps", "--only-binary=:all:", "--python-version", chosen.python, *platforms]
    for command in (
        [*fetch, "-d", str(chosen.folder), *map(pinned, chosen.lacks.split(","))],
        [*pip, "wheel", "--no-deps", "-w", str(chosen.folder), str(ROOT)],
    ):
        if code := subprocess.run(command, check=False).returncode:
            return code
    wheels = sorted(chosen.folder.glob("*.whl"))
    print(f"{len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 2**20:.1f} MiB, in {chosen.folder}")
    return 0


def pinned(name: str) -> str:
    """Return `name==version`, as in `constraints.txt`; the name alone where that has none."""
    spelled = re.sub("[-_.]+", "[-_.]", name)
    found = re.search(rf"(?im)^{spelled}==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    return found[0] if found else name
