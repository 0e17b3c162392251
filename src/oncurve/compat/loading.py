"""The configuration of a translation, with the user's own keys in what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from oncurve.base.errors import ConfigError
from oncurve.compat.dialect import Translation
from oncurve.config import RunConfig, load_config, tables_of


def config_of(
    translation: Translation, overrides: Iterable[str] = (), arguments: Mapping[str, object] | None = None
) -> tuple[RunConfig, Path]:
    """Return the configuration that a translation describes, and the folder that its relative paths start in.

    `overrides` are words of oncurve, like `"kl.coef=0.01"`, and win; `arguments` are settings that it lacks.

    Raises ConfigError for what `load_config` refuses, each line with the tool's key that the setting comes from.
    """
    try:
        return load_config(None, overrides, settings=tables_of(arguments or {}, translation.settings))
    except ConfigError as error:
        raise ConfigError(translation.explained(str(error))) from None
