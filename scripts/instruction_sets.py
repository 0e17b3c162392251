"""Runs the tests whose numbers depend on the processor under several instruction sets.

    python scripts/instruction_sets.py               all of `SETTINGS`, all of `ROOMS`
    python scripts/instruction_sets.py plain         one of them
    python scripts/instruction_sets.py plain -- PATHS AND OPTIONS OF PYTEST

Environment variables limit the instruction sets of torch, MKL and oneDNN; they do not use one that the processor lacks.
Each run has one thread. Exit code: 0 if every run passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "plain": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "sse4": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "SSE4_2",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "avx512": {"MKL_CBWR": "AVX512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
}
ROOMS = (
    "tests/contracts",
    "tests/golden",
    "tests/oracles",
    "tests/properties",
    "tests/unit/advantages",
    "tests/unit/learner",
    "tests/unit/losses",
    "tests/unit/models",
    "tests/unit/rewards/test_model_rewards.py",
    "tests/unit/rollout",
    "tests/unit/test_arithmetic.py",
    "tests/unit/test_ops.py",
    "tests/unit/trainer",
)


def run(name: str, words: Sequence[str] = ROOMS) -> subprocess.CompletedProcess[str]:
    """Return the tests that `words` name to pytest, under the settings of that name; what they said."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *words]
    environment = {**os.environ, **SETTINGS[name], "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; the exit code."""
    names, _, words = " ".join(arguments).partition("--")
    failed = 0
    for name in names.split() or SETTINGS:
        done = run(name, words.split() or ROOMS)
        failed += done.returncode != 0
        print(f"{name}: {done.stdout if done.returncode else done.stdout.splitlines()[-1]}{done.stderr}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
