"""A run: its configuration, how it is put together, and what it says of itself. The only room that knows all others.

Loaded lazily: importing this package imports none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy  # noqa: F401 - before torch, whose C code imports it and would swallow an interrupt that comes meanwhile

if TYPE_CHECKING:
    from oncurve.run.assemble import Run, assemble
    from oncurve.run.checks import check_complete, missing
    from oncurve.run.config import RunConfig
    from oncurve.run.explain import Facts, explain, plan
    from oncurve.run.loading import load_config, to_toml

_HOMES = {
    "Facts": "plan",
    "Run": "assemble",
    "RunConfig": "config",
    "assemble": "assemble",
    "check_complete": "checks",
    "explain": "explain",
    "load_config": "loading",
    "missing": "checks",
    "plan": "plan",
    "to_toml": "loading",
}

__all__ = [
    "Facts",
    "Run",
    "RunConfig",
    "assemble",
    "check_complete",
    "explain",
    "load_config",
    "missing",
    "plan",
    "to_toml",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
