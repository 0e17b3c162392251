"""`oncurve resume`, for any kind of run."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from oncurve.base.errors import ConfigError
from oncurve.run.directory.folder import RunDirectory


def resume_any(directory: Path, overrides: Sequence[str] = (), changed: bool = False) -> str | None:
    """Continue a run of `oncurve train` or `oncurve reward-model train`; returns the signal that stopped it, or None.

    `overrides`: settings that change from now on; `changed`: continue although others or data have changed, which is
    not exact. Raises UserError for what the user can fix.
    """
    RunDirectory.check_run(directory)
    sections: set[str] = set()
    with suppress(OSError, ValueError, RecursionError):  # `load_config` reports what is wrong with the file
        sections = set(tomllib.loads((directory / "config.toml").read_text(encoding="utf-8")))
    if "reward_model" in sections and "rewards" not in sections:
        from oncurve.run.commands.reward_models import resume_reward_model

        if overrides:
            key = overrides[0].partition("=")[0]
            raise ConfigError(f"{key}: the training of a reward model resumes with the settings that it began with")
        return resume_reward_model(directory, changed)
    from oncurve.run.session import resume_run

    return resume_run(directory, overrides, changed)
