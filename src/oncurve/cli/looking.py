"""The commands that look into a run's groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from oncurve.base.errors import ConfigError
from oncurve.base.output import say
from oncurve.cli.groups import Json


def show_command(
    directory: Annotated[Path, typer.Argument(help="The run's folder.", metavar="DIR")],
    step: Annotated[int | None, typer.Option("--step", help="The step (default: the newest that is kept).")] = None,
    group: Annotated[
        int | None, typer.Option("--group", help="The group's number in the step, from 0 (default: list all).", min=0)
    ] = None,
    completion: Annotated[
        int | None, typer.Option("--completion", help="One completion of the group, by its number.", min=0)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the groups of a step, or one group: texts, rewards, and the tokens that the step changed most.

    The run may be going on.
    """
    from oncurve.report import show_text, shown

    if completion is not None and group is None:
        raise ConfigError("--completion: name its group, too, by --group")
    found = shown(directory, step, group, completion)
    say(show_text(found))
    if as_json:
        say(json.dumps(found))
