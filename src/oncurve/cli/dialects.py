"""The commands that read other tools' settings: `oncurve config from-…`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncurve.base.errors import ConfigError, command
from oncurve.base.output import say
from oncurve.cli.help import CommandWithExamples

if TYPE_CHECKING:
    from oncurve.compat import Translation
    from oncurve.config import RunConfig

dialect_app = typer.Typer()
"""The commands of `oncurve config` that read other tools' settings."""

RecipeOut = Annotated[Path | None, typer.Option("--out")]


def config_of_file(
    file: Path, overrides: Sequence[str], data: str | None, rewards: Sequence[str], presets: Sequence[str]
) -> tuple[RunConfig, Path, str]:
    """Return the configuration of `train --config FILE`, its folder and a name, of a recipe or of rlox's file.

    Raises ConfigError: no such file, a preset next to rlox's `algorithm`, or wrong settings.
    """
    from oncurve.compat.rlox import run_config
    from oncurve.run import command_config

    found = run_config(file, overrides, data, rewards)
    if found is None:
        return command_config(str(file), overrides, data, rewards, presets)
    if presets:
        raise ConfigError(f"--preset: {file} chooses the algorithm; leave one of them out")
    return *found, file.stem


def show_recipe(translation: Translation, out: Path | None) -> None:
    """Print a translation as a recipe, or write it.

    Raises ConfigError: oncurve refuses the settings, or the file exists or cannot be written.
    """
    from oncurve.compat import config_of, recipe_of

    config_of(translation)
    text = recipe_of(translation)
    if out is None:
        say(text.rstrip("\n"))
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{out}: exists already; name another file by --out") from None
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error
    say(translation.counted())
    say(f"wrote {out}; look through it, then: {command('train', out)}")


@dialect_app.command("from-openrlhf", cls=CommandWithExamples, context_settings={"ignore_unknown_options": True})
def config_from_openrlhf(
    words: Annotated[list[str], typer.Argument(metavar="FLAGS")],
    out: RecipeOut = None,
) -> None:
    """Print the recipe of OpenRLHF's train_ppo_ray flags, with a comment per flag."""
    from oncurve.compat import from_openrlhf

    show_recipe(from_openrlhf(words), out)


@dialect_app.command("from-verl", cls=CommandWithExamples, context_settings={"ignore_unknown_options": True})
def config_from_verl(
    words: Annotated[list[str], typer.Argument(metavar="YAML|KEY=VALUE")],
    out: RecipeOut = None,
) -> None:
    """Print the recipe of a verl command, with a comment per key."""
    from oncurve.compat.verl import DIALECT, read

    reading = read(words)
    for note in reading.notes:
        say(f"# {note}")
    show_recipe(DIALECT.translate(reading.said), out)


def train_by_verl(words: list[str], out: Path | None, resume_if_there: bool, others: list[object]) -> str | None:
    """Train by `oncurve train --verl`. Raises ConfigError: an option stands next to a setting of verl's."""
    from oncurve.compat.verl import train_verl

    if any(others):
        raise ConfigError("--verl: data, reward and algorithm are verl's settings, too; leave out the other options")
    return train_verl(words, out, resume_if_there)
