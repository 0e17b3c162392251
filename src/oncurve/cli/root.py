"""The `oncurve` command: it parses, dispatches and prints; the rooms below do the work.

Exit codes: 0 success, 1 the run failed, 2 bad input, 129, 130 or 143 stopped by SIGHUP, Ctrl-C or SIGTERM.
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from oncurve.base.errors import ConfigError, OncurveError, command, notes_of
from oncurve.base.imports import only_looking, trusting
from oncurve.base.output import Terminal, complain, installed, own_process, say
from oncurve.base.paths import permitted, working_directory
from oncurve.cli.groups import (
    RECIPE,
    Data,
    Json,
    Overrides,
    Preset,
    Recipe,
    Reward,
    Trust,
    config_app,
    config_of_file,
    configured,
    data_app,
    exit_with,
    reward_app,
    reward_model_app,
    show,
    show_command,
    train_by_verl,
    view_command,
)
from oncurve.cli.help import CommandWithExamples


class _Interrupted(Exception):  # noqa: N818 - it is no error
    """Ctrl-C outside of training; Typer would end the process without a message."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Run a command. Raises _Interrupted on Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error


app = typer.Typer(
    name="oncurve",
    cls=_Commands,
    help="Train language models with GRPO. Start with `oncurve demo`; `oncurve train` trains your model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: usage errors quote what was typed
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(reward_app, name="reward")
app.add_typer(reward_model_app, name="reward-model")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Train language models with GRPO."""
    if version:
        from oncurve import __version__

        say(f"oncurve {__version__}")
        raise typer.Exit
    working_directory()


@app.command(cls=CommandWithExamples)
def train(
    recipe: Annotated[str | None, typer.Argument(metavar=RECIPE)] = None,
    overrides: Overrides = None,
    data: Data = None,
    reward: Reward = None,
    preset: Preset = None,
    out: Path | None = None,
    resume_if_there: Annotated[bool, typer.Option("--resume-if-there")] = False,
    file: Annotated[Path | None, typer.Option("--config")] = None,
    verl: Annotated[bool, typer.Option("--verl")] = False,
    trust: Trust = False,
    config_name: Annotated[str | None, typer.Option("--config-name", hidden=True)] = None,
    config_path: Annotated[str | None, typer.Option("--config-path", hidden=True)] = None,
) -> None:
    """Train a model, by a recipe or by data and a reward, into a new run directory."""
    named = str(file or recipe or "")
    if named and "=" not in named and Terminal().isatty():  # `sys.stdout` itself is `Plain`, which is no terminal
        say(f"loading {named} ...")  # the imports below take seconds
    words = [*([] if recipe is None else [recipe]), *(overrides or [])]
    hydra = {"--config-name": config_name, "--config-path": config_path}
    flags = [f"{name}={value}" for name, value in hydra.items() if value is not None]
    if flags and not verl:
        raise ConfigError(f"{flags[0]}: a flag of verl's; give --verl, too")
    if verl:
        exit_with(train_by_verl([*words, *flags], out, resume_if_there, [file, data, reward, preset]))
        return
    if file is not None:
        config, base, name = config_of_file(file, words, data, reward or [], preset or [])
    elif recipe is None:
        raise typer.BadParameter(f"name a recipe or a model, like: {command('train', 'gsm8k')}")
    else:
        config, base, name = configured(recipe, overrides, data, reward, preset)
    from oncurve.run import train_or_resume, train_recipe

    if not resume_if_there:
        exit_with(train_recipe(config, base, out, name))
    elif out is None:
        raise ConfigError("--resume-if-there: name the run's folder by --out; without it each run has a new one")
    else:
        exit_with(train_or_resume(config, base, out))


@app.command(cls=CommandWithExamples)
def sft(
    recipe: Recipe,
    overrides: Overrides = None,
    data: Data = None,
    reward: Reward = None,
    preset: Preset = None,
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Fine-tune a model on demonstrations: the warm start of [sft], by itself.

    Rows have a prompt and a completion, messages, or text. `oncurve train` makes this stage itself where its recipe has
    [sft]. Rewards score the samples of evaluations.
    """
    from oncurve.config import names_model

    names_model(recipe)
    from oncurve.run import sft_config, train_recipe

    config, base, name = sft_config(recipe, overrides or [], data, reward or [], preset or [])
    exit_with(train_recipe(config, base, out, f"{Path(name).stem}-sft"))


@app.command(cls=CommandWithExamples)
def init(
    name: Annotated[str, typer.Argument(metavar="NAME")] = "own",
    out: Path | None = None,
) -> None:
    """Write a commented recipe to edit, and the code that it names."""
    from oncurve.config import write_recipe

    written = write_recipe(name, out)
    for file in written:
        say(f"wrote {file}")
    say(f"edit it, then: {command('train', written[0])}")


@app.command(cls=CommandWithExamples)
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE")] = None,
    changed: Annotated[bool, typer.Option("--changed")] = False,
    trust: Trust = False,
) -> None:
    """Continue a stopped or killed run, exactly where it was: its newest checkpoint.

    `kill -USR1 PID` asks a run that goes on for a checkpoint, and run.max_minutes=N ends one in order.
    """
    from oncurve.run import RunDirectory

    RunDirectory.check_run(directory)
    from oncurve.run import resume_any

    exit_with(resume_any(directory, overrides or [], changed))


@app.command(cls=CommandWithExamples)
def runs(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]")] = None,
    as_json: Json = False,
) -> None:
    """List runs with their state, step, best evaluation and age."""
    from oncurve.run import list_runs, table_of

    found = list_runs(folder)
    show(table_of(found), [run.to_json() for run in found], as_json)


@app.command(cls=CommandWithExamples)
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    step: str | None = None,
    out: Path | None = None,
    adapter: Annotated[bool, typer.Option("--adapter")] = False,
    push: Annotated[str | None, typer.Option("--push", metavar="REPO")] = None,
) -> None:
    """Write the policy of a checkpoint in Hugging Face form, with a model card; the run may be going on."""
    from oncurve.run import RunDirectory

    if push is None:
        RunDirectory.check_run(directory)
    from oncurve.run import check_repository, export_run, push_export

    if push is not None:
        check_repository(push)
    exported = export_run(directory, step, out, adapter)
    say(exported.text())
    if push is not None:
        say(push_export(exported, push))


@app.command("eval", cls=CommandWithExamples)
def evaluate_command(
    target: Annotated[str, typer.Argument(metavar="DIR|MODEL")],
    overrides: Overrides = None,
    recipe: str | None = None,
    step: str | None = None,
    n: Annotated[int, typer.Option("--n", min=1)] = 8,
    limit: Annotated[int | None, typer.Option("--limit", min=1)] = None,
    trust: Trust = False,
    data: Data = None,
    reward: Reward = None,
    preset: Preset = None,
    as_json: Json = False,
) -> None:
    """Measure accuracy, pass@k, maj@k and mean reward.

    Accuracy is greedy, pass@k unbiased; each figure has a 95 % interval.
    """
    from oncurve.run import evaluate_target

    name, found = evaluate_target(
        target, overrides or [], recipe=recipe, step=step, n=n, limit=limit, data=data, reward=reward, presets=preset
    )
    show(f"{name}: {found.text()}", {"model": name, **found.to_json()}, as_json)


@app.command(cls=CommandWithExamples)
def demo(
    seed: int = 0,
    out: Path | None = None,
    as_json: Json = False,
) -> None:
    """Train the shipped tiny model to reason, in minutes."""
    from oncurve.demo import run_demo

    exit_with(run_demo(seed=seed, out=out, as_json=as_json))


@app.command("plan", cls=CommandWithExamples)
def plan_command(
    recipe: Annotated[str | None, typer.Argument(metavar=RECIPE)] = None,
    overrides: Overrides = None,
    data: Data = None,
    reward: Reward = None,
    preset: Preset = None,
    model: str | None = None,
    parameters: str | None = None,
    prompt_tokens: int | None = None,
    machine: str | None = None,
    sft: Annotated[bool, typer.Option("--sft")] = False,
    memory: str | None = None,
    as_json: Json = False,
) -> None:
    """Predict a run's memory and the time of a step.

    The model is not loaded. Exit code 1: the run does not fit into memory.
    """
    words = list(overrides or [])
    if recipe is not None and "=" in recipe and not os.path.exists(recipe):  # a setting: there is no recipe
        words, recipe = [recipe, *words], None
    with only_looking():
        config, base, _ = configured(recipe, words, data, reward, preset, "plan")
        from oncurve.forecast import forecast_command

        config = config.stage if sft else config
        config = config.model_copy(update={"model": config.model.model_copy(update={"trust_remote_code": False})})
        known = (model, parameters, prompt_tokens, (machine, memory), words)
        found = forecast_command(config, base, recipe or "no recipe", *known, lambda line: complain(f"{line} ..."))
    show(found.text(), found.to_json(), as_json)
    if not found.fits:
        raise typer.Exit(1)


@app.command(cls=CommandWithExamples)
def doctor(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    as_json: Json = False,
) -> None:
    """Look for what is wrong with a run: finished, stopped or still going on.

    Each finding has its evidence, the reason, and the settings to change. Exit code 1: something needs a change.
    """
    from oncurve.doctor import diagnose, in_words

    found = diagnose(directory)
    show(in_words(found), found.to_json(), as_json)
    if not found.healthy:
        raise typer.Exit(1)


@app.command(cls=CommandWithExamples)
def report(directory: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Write a run's page, DIR/report.html, from its files as they are now; the run may be going on."""
    from oncurve.report import write_report

    say(str(write_report(directory)))


app.command("show", cls=CommandWithExamples)(show_command)
app.command("view", cls=CommandWithExamples)(view_command)


def main() -> None:
    """Run the command. Errors of oncurve are printed as messages, without tracebacks."""
    with installed(), own_process():
        try:
            with permitted(), trusting(asks=True):
                app(prog_name="oncurve")  # and not `python -m oncurve`: help texts are found by it
        except OncurveError as error:
            complain("\n".join([f"oncurve: {error}", *notes_of(error)]))
            sys.exit(error.exit_code)
        except (_Interrupted, KeyboardInterrupt) as error:
            complain("\n".join(["oncurve: stopped by SIGINT", *notes_of(error.__cause__ or error)]))
            sys.exit(128 + signal.SIGINT)
        except Exception:
            complain(traceback.format_exc().rstrip())  # a defect of oncurve; its message may quote anything
            sys.exit(1)
