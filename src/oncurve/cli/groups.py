"""The commands in groups (configuration, data, rewards, reward models), and those that look into runs.

What the arguments of commands share is here, too. `oncurve config from-…` reads other tools' settings.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oncurve.base.errors import ConfigError, command
from oncurve.base.imports import only_looking, trust_all
from oncurve.base.output import say
from oncurve.cli.help import CommandWithExamples

if TYPE_CHECKING:
    from oncurve.compat import Translation
    from oncurve.config import RunConfig

config_app = typer.Typer(no_args_is_help=True, help="Show or explain a configuration.")
data_app = typer.Typer(no_args_is_help=True, help="Look at a recipe's data before a run.")
reward_app = typer.Typer(no_args_is_help=True, help="Look at a recipe's rewards before a run.")
reward_model_app = typer.Typer(no_args_is_help=True, help="Train a reward model, or make its training data.")

RECIPE = "RECIPE|MODEL"
Recipe = Annotated[str, typer.Argument(metavar=RECIPE)]
Data = Annotated[str | None, typer.Option("--data")]
Reward = Annotated[list[str] | None, typer.Option("--reward")]
Preset = Annotated[list[str] | None, typer.Option("--preset")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE")]
RecipeOut = Annotated[Path | None, typer.Option("--out")]

Trust = Annotated[bool, typer.Option("--trust", callback=trust_all)]
Json = Annotated[bool, typer.Option("--json")]


def configured(
    recipe: str | None,
    overrides: list[str] | None,
    data: str | None,
    reward: list[str] | None,
    preset: list[str] | None,
    of: str = "train",
) -> tuple[RunConfig, Path, str]:
    """Return what `command_config` makes of a command's words.

    Raises ConfigError: a recipe that is not there, before the imports below, which take seconds; or wrong settings.
    """
    from oncurve.config import names_model

    if recipe is not None:
        names_model(recipe)
    from oncurve.run import command_config

    return command_config(recipe, overrides or [], data, reward or [], preset or [], of)


@config_app.command("show", cls=CommandWithExamples)
def config_show(
    recipe: Recipe, overrides: Overrides = None, data: Data = None, reward: Reward = None, preset: Preset = None
) -> None:
    """Print the resolved configuration as TOML."""
    with only_looking():
        config, _, _ = configured(recipe, overrides, data, reward, preset, "config show")
    from oncurve.config import to_toml

    say(to_toml(config))
    here = config.model.precision_here()
    if config.model.dtype == "auto" and here is not None:
        say(f"# On this machine model.dtype is {here[0]!r} ({here[1]}); a run's own file says so.")


@config_app.command("explain", cls=CommandWithExamples)
def config_explain(
    recipe: Recipe, overrides: Overrides = None, data: Data = None, reward: Reward = None, preset: Preset = None
) -> None:
    """Print the objective as an equation, and the plan in words; or the meaning of one key, section or metric."""
    from oncurve.config import names_recipe

    if not (names_recipe(recipe) or os.path.exists(recipe) or data is not None):
        from oncurve.config import explain_key

        if (about := explain_key(recipe)) is not None:
            say(about)
            return
    with only_looking():
        config, _, _ = configured(recipe, overrides, data, reward, preset, "config explain")
        from oncurve.config import explain, plan

        say(explain(config))
        say()
        for line in plan(config):
            say(f"  {line}")


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


@config_app.command("from-openrlhf", cls=CommandWithExamples, context_settings={"ignore_unknown_options": True})
def config_from_openrlhf(
    words: Annotated[list[str], typer.Argument(metavar="FLAGS")],
    out: RecipeOut = None,
) -> None:
    """Print the recipe of OpenRLHF's train_ppo_ray flags, with a comment per flag."""
    from oncurve.compat import from_openrlhf

    show_recipe(from_openrlhf(words), out)


@config_app.command("from-verl", cls=CommandWithExamples, context_settings={"ignore_unknown_options": True})
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


@data_app.command("check", cls=CommandWithExamples)
def data_check(
    recipe: Recipe,
    overrides: Overrides = None,
    data: Data = None,
    reward: Reward = None,
    preset: Preset = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Show rows, columns and prompts of a recipe, and what rewards need of them.

    The model's weights are not loaded. Exit code 2: a run would refuse the data.
    """
    config, base, _ = configured(recipe, overrides, data, reward, preset, "data check")
    from oncurve.run import check_data_of

    found = check_data_of(config, base)
    show(found.text(), found.to_json(), as_json)
    if found.problems:
        raise typer.Exit(2)


@reward_app.command("check", cls=CommandWithExamples)
def reward_check(
    recipe: Recipe,
    overrides: Overrides = None,
    data: Data = None,
    reward: Reward = None,
    preset: Preset = None,
    sample: Annotated[bool, typer.Option("--sample")] = False,
    completions: Path | None = None,
    column: str = "completion",
    prompts: Annotated[int, typer.Option("--prompts", min=1)] = 4,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Show what the rewards give to completions, as a table.

    Completions are sampled, or given: in a column of the recipe's data, or in a file. Exit code 2: a reward fails, or
    all completions and the reference answer have the reward 0.
    """
    config, base, _ = configured(recipe, overrides, data, reward, preset, "reward check")
    from oncurve.run import check_rewards_of

    found = check_rewards_of(config, base, sample, completions, column, prompts)
    show(found.text(), found.to_json(), as_json)
    if found.worthless:
        raise typer.Exit(2)


@reward_model_app.command("train", cls=CommandWithExamples)
def reward_model_train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE")],
    overrides: Overrides = None,
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Train a reward model on pairs or labelled steps."""
    from oncurve.run import load_reward_recipe, train_reward_model

    config, base = load_reward_recipe(recipe, overrides or [])
    exit_with(train_reward_model(config, base, out))


@reward_model_app.command("label", cls=CommandWithExamples)
def reward_model_label(
    recipe: Recipe,
    out: Annotated[Path, typer.Option("--out")],
    overrides: Overrides = None,
    data: Data = None,
    reward: Reward = None,
    preset: Preset = None,
    kind: Literal["preferences", "steps"] = "preferences",
    prompts: Annotated[int, typer.Option("--prompts", min=1)] = 256,
    verifier: str | None = None,
    continuations: Annotated[int, typer.Option("--continuations", min=0)] = 0,
    trust: Trust = False,
) -> None:
    """Label a policy's samples, as training data (JSONL)."""
    config, base, _ = configured(recipe, overrides, data, reward, preset, "reward-model label")
    from oncurve.run import label_samples

    label_samples(config, base, out, kind, prompts, verifier, continuations)


def show(text: str, value: Any, as_json: bool) -> None:
    """Print a result as text, and its `value` as a last line of JSON where `as_json`."""
    say(text)
    if as_json:
        say(json.dumps(value))


def exit_with(stopped_by: str | None) -> None:
    """Exit with 128 + the signal's number, as shells expect, if a signal ended the run; a limit counts as SIGTERM."""
    if stopped_by is not None:
        raise typer.Exit(128 + signal.Signals.__members__.get(stopped_by, signal.SIGTERM))


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
