"""The commands that look into runs: in a terminal, and in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oncurve.base.errors import ConfigError
from oncurve.base.output import say
from oncurve.cli.groups import Json, show


def show_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    step: int | None = None,
    group: Annotated[int | None, typer.Option("--group", min=0)] = None,
    completion: Annotated[int | None, typer.Option("--completion", min=0)] = None,
    flips: Annotated[bool, typer.Option("--flips")] = False,
    since: int | None = None,
    as_json: Json = False,
) -> None:
    """Show the groups of a step, or one group: texts, rewards, and the tokens that the step changed most.

    With --flips held-out problems, between two evaluations. The run may be going on.
    """
    from oncurve.report import look_at, look_at_flips, show_text

    if completion is not None and (group is None or flips):
        raise ConfigError("--completion: name its group, too, by --group; an evaluation has none")
    if since is not None and not flips:
        raise ConfigError("--since: the first of two evaluations; give --flips, too")
    try:
        found = look_at_flips(directory, since, step, group) if flips else look_at(directory, step, group, completion)
    except KeyError as error:
        raise ConfigError(f"--group: these evaluations have no problem {group}") from error
    show(show_text(found), found, as_json)


def view_command(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]")] = Path("runs"),
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535)] = None,
    at: str | None = None,
    no_browser: Annotated[bool, typer.Option("--no-browser")] = False,
    export_to: Annotated[Path | None, typer.Option("--export")] = None,
    steps: str | None = None,
) -> None:
    """Show runs in a browser: curves, groups, and what each update did to each token.

    The server answers this machine alone, by the address that it prints; the runs may be going on.
    """
    from oncurve.view import copy_runs, view

    if export_to is not None:
        say(str(copy_runs(folder, export_to, steps)))
    elif steps is not None:
        raise ConfigError("--steps chooses the steps of a copy: give --export FOLDER, too")
    else:
        view(folder, port, not no_browser, at)
