"""The environment variables of a worker: those that programs need to run, and no secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from oncurve.base.errors import ConfigError

_NEEDED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|LC_.*|TMPDIR|TMP|TEMP|PYTHON.*|VIRTUAL_ENV|CONDA_PREFIX"
    "|LD_LIBRARY_PATH|DYLD_LIBRARY_PATH|(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|VECLIB)_.*|CUDA_VISIBLE_DEVICES"
    "|CUDA_DEVICE_ORDER|CUDA_HOME|NVIDIA_VISIBLE_DEVICES|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE"
)
_SECRET = re.compile("TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def environment(passed: Sequence[str] = ()) -> dict[str, str]:
    """The variables of a worker: paths, language, threads and devices, and those that `passed` names.

    A variable whose name contains a word such as token, key or password is passed on only where `passed` names it.
    Libraries use one thread, unless this process's environment sets a number.

    Raises ConfigError: a variable of `passed` is not set.
    """
    missing = [name for name in passed if name not in os.environ]
    if missing:
        raise ConfigError(f"env_pass: {missing[0]} is not set; set it where oncurve runs, or leave it out")
    needed = {name: value for name, value in os.environ.items() if _NEEDED.fullmatch(name) and not _SECRET.search(name)}
    return {**_ONE_THREAD, **needed, **{name: os.environ[name] for name in passed}}
