"""The commands in groups: configuration, data, rewards, reward models; and what the arguments of commands share."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oncurve.base.imports import only_looking, trust_all
from oncurve.base.output import say
from oncurve.cli.dialects import dialect_app
from oncurve.cli.help import CommandWithExamples

if TYPE_CHECKING:
    from oncurve.config import RunConfig

config_app = typer.Typer(no_args_is_help=True, help="Show or explain a configuration.")
data_app = typer.Typer(no_args_is_help=True, help="Look at a recipe's data before a run.")
reward_app = typer.Typer(no_args_is_help=True, help="Look at a recipe's rewards before a run.")
reward_model_app = typer.Typer(no_args_is_help=True, help="Train a reward model, or make its training data.")

config_app.add_typer(dialect_app)

RECIPE = "RECIPE|MODEL"
Recipe = Annotated[str, typer.Argument(metavar=RECIPE)]
Data = Annotated[str | None, typer.Option("--data")]
Reward = Annotated[list[str] | None, typer.Option("--reward")]
Preset = Annotated[list[str] | None, typer.Option("--preset")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE")]

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
