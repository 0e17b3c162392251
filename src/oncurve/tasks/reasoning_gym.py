"""Data sets of reasoning-gym, each made once in a process."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from oncurve.base.errors import ConfigError


def reasoning_dataset(about: Mapping[str, Any]) -> Any:
    """Return the data set of `{"name", "size", "seed", and its other settings}`: the same settings, the same entries.

    Raises ConfigError: there is none of this name, or it has no such settings.
    """
    return _made(json.dumps(dict(about), sort_keys=True))


@cache
def _made(about: str) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset  # here: it takes a second to import

    settings = json.loads(about)
    if settings["name"] not in DATASETS:
        near = ", ".join(get_close_matches(settings["name"], DATASETS)) or "see its gallery"
        raise ConfigError(f"data.name: reasoning_gym has no data set {settings['name']!r}; near it: {near}")
    try:
        return create_dataset(**settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"data.config: {settings['name']} of reasoning_gym refuses it: {error}") from error
