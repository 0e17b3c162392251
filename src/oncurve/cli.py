"""The `oncurve` command: parse, dispatch, print. What it does lives in the rooms below.

Exit codes: 0 done, 1 the run failed, 2 bad input, 129, 130 or 143 stopped by SIGHUP, Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from oncurve.errors import OncurveError, UserError
from oncurve.output import complain, installed, own_process, say

__all__ = ["app", "main"]


class _Interrupted(Exception):  # noqa: N818 - it is no error
    """Ctrl-C outside of training: Typer would end the process without a word."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Run a command. A Ctrl-C comes out as `_Interrupted`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error


app = typer.Typer(
    name="oncurve",
    cls=_Commands,
    help="Train language models with GRPO. `oncurve demo` shows it in minutes; `oncurve train RECIPE.toml` is yours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: usage errors quote what was typed
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(
    no_args_is_help=True, help="Look at a configuration: the resolved file, or the objective in words."
)
app.add_typer(config_app, name="config")
reward_model_app = typer.Typer(no_args_is_help=True, help="Train a reward model, or make the data it learns from.")
app.add_typer(reward_model_app, name="reward-model")

Recipe = Annotated[
    str, typer.Argument(help="A recipe (.toml or .yaml), or the name of a shipped recipe or preset.", metavar="RECIPE")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings to change: section.key=value ...", metavar="SECTION.KEY=VALUE")
]
Json = Annotated[bool, typer.Option("--json", help="Print one last line of JSON.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Train language models with GRPO."""
    if version:
        from oncurve import __version__

        say(f"oncurve {__version__}")
        raise typer.Exit
    from oncurve.paths import working_directory

    working_directory()


@app.command()
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; it must not exist yet.")] = None,
) -> None:
    """Train a model as RECIPE says, into a run directory."""
    from oncurve.run.loading import load_config
    from oncurve.run.session import train_recipe

    config, base = load_config(recipe, overrides or [])
    _exit_with(train_recipe(config, base, out))


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="The run's folder.", metavar="DIR")],
    changed: Annotated[
        bool, typer.Option("--changed", help="Go on although settings or data have changed: not exact.")
    ] = False,
) -> None:
    """Go on with a run that was stopped or killed, exactly where it was."""
    from oncurve.run.resuming import resume_any

    _exit_with(resume_any(directory, changed))


@app.command("eval")
def evaluate_command(
    target: Annotated[str, typer.Argument(help="A run's folder, or a model (folder or hub id).", metavar="DIR|MODEL")],
    overrides: Overrides = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Prompts and rewards for a bare MODEL (or other ones for a run).")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Sampled completions a prompt, for pass@k and maj@k.", min=1)] = 8,
    limit: Annotated[int | None, typer.Option("--limit", help="Use this many prompts at most.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Greedy accuracy, unbiased pass@k, maj@k and mean reward, with 95 % intervals."""
    from oncurve.run.evaluation import evaluate_target

    evaluation = evaluate_target(target, overrides or [], recipe=recipe, n=n, limit=limit)
    say(evaluation.text())
    if as_json:
        say(json.dumps(evaluation.to_json()))


@app.command()
def demo(
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another run.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; it must not exist yet.")] = None,
    process: Annotated[bool, typer.Option("--process", help="Grade every line of working by itself.")] = False,
    ppo: Annotated[bool, typer.Option("--ppo", help="With a critic in the place of the group's mean.")] = False,
    as_json: Json = False,
) -> None:
    """Watch GRPO teach the shipped tiny model to reason, in minutes, on this machine."""
    from oncurve.demo import run_demo
    from oncurve.errors import ConfigError

    if process and ppo:
        raise ConfigError("--process and --ppo are two demos; ask for one of them")
    kind = "process" if process else "ppo" if ppo else "recipe"
    _exit_with(run_demo(seed=seed, out=out, as_json=as_json, kind=kind))


@app.command("plan")
def plan_command(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe, or the name of one or of a preset.", metavar="RECIPE")
    ] = None,
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option("--model", help="A shape by name, or a model's folder or id.")] = None,
    parameters: Annotated[str | None, typer.Option("--parameters", help="A usual shape of that size: 7B.")] = None,
    prompts: Annotated[int | None, typer.Option("--prompts", help="Prompts a step.")] = None,
    group_size: Annotated[int | None, typer.Option("--group-size", help="Completions a prompt.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option("--prompt-tokens", help="Tokens of a prompt.")] = None,
    completion_tokens: Annotated[
        int | None, typer.Option("--completion-tokens", help="Tokens of a completion; as a rule the most it may have.")
    ] = None,
    machine: Annotated[str | None, typer.Option("--machine", help="A card by name, in place of this machine.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Its memory: 80GiB.")] = None,
    tflops: Annotated[float | None, typer.Option("--tflops", help="Its rate of bf16 products: 790.")] = None,
    bandwidth: Annotated[str | None, typer.Option("--bandwidth", help="Its memory's speed: 4300GB/s.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a run will hold and how long a step takes, before anything is loaded; exit code 1: it does not fit."""
    from oncurve.run.forecasting import Sizes, forecast_command

    sizes = Sizes(prompts, group_size, prompt_tokens, completion_tokens)
    named = (machine, memory, tflops, bandwidth)
    found = forecast_command(
        recipe, overrides or [], model, parameters, sizes, named, lambda line: complain(f"{line} ...")
    )
    say(found.text())
    if as_json:
        say(json.dumps(found.to_json()))
    if not found.fits:
        raise typer.Exit(1)


@config_app.command("show")
def config_show(recipe: Recipe, overrides: Overrides = None) -> None:
    """Print the resolved configuration as TOML."""
    from oncurve.run.loading import load_config, to_toml

    config, _ = load_config(recipe, overrides or [])
    say(to_toml(config))
    here = config.model.precision_here()
    if config.model.dtype == "auto" and here is not None:
        say(f"# On this machine model.dtype is {here[0]!r} ({here[1]}); a run's own file says so.")


@config_app.command("explain")
def config_explain(recipe: Recipe, overrides: Overrides = None) -> None:
    """Print the objective as an equation with the numbers in, and what a step does, in words."""
    from oncurve.run.explain import explain, plan
    from oncurve.run.loading import load_config

    config, _ = load_config(recipe, overrides or [])
    say(explain(config))
    say()
    for line in plan(config):
        say(f"  {line}")


@reward_model_app.command("train")
def reward_model_train(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; it must not exist yet.")] = None,
) -> None:
    """Train a reward model on preference pairs or labelled steps, into a run directory."""
    from oncurve.run.reward_models import load_reward_recipe, train_reward_model

    config, base = load_reward_recipe(recipe, overrides or [])
    _exit_with(train_reward_model(config, base, out))


@reward_model_app.command("label")
def reward_model_label(
    recipe: Recipe,
    out: Annotated[Path, typer.Option("--out", help="The file to write; it must not exist yet.")],
    overrides: Overrides = None,
    kind: Annotated[str, typer.Option("--kind", help="What to make: preferences (pairs), or steps.")] = "preferences",
    prompts: Annotated[int, typer.Option("--prompts", help="Prompts to sample completions of.", min=1)] = 256,
    judge: Annotated[str | None, typer.Option("--judge", help="The reward whose word counts, by name.")] = None,
    roll_outs: Annotated[
        int, typer.Option("--roll-outs", help="Completions from each step's end; 0: the judge judges steps.", min=0)
    ] = 0,
) -> None:
    """Judge a policy's own samples: what a reward model can learn from, as a JSONL file."""
    from oncurve.errors import ConfigError
    from oncurve.run.reward_labels import label_samples

    if kind not in ("preferences", "steps"):
        raise ConfigError(f'--kind: expected "preferences" or "steps", got {kind!r}')
    label_samples(recipe, overrides or [], out, kind, prompts, judge, roll_outs)  # type: ignore[arg-type]


def _exit_with(stopped_by: str | None) -> None:
    """A run that a signal ended early exits as shells expect: 128 + the signal's number."""
    if stopped_by is not None:
        raise typer.Exit(128 + signal.Signals[stopped_by])


def main() -> None:
    """The command's entry: errors of ours are messages, not tracebacks, and what is printed goes through `output`."""
    with installed(), own_process():
        try:
            app()
        except OncurveError as error:
            complain(f"oncurve: {error}")
            sys.exit(2 if isinstance(error, UserError) else 1)
        except (_Interrupted, KeyboardInterrupt):
            complain("oncurve: stopped by SIGINT")
            sys.exit(128 + signal.SIGINT)
        except Exception:
            complain(traceback.format_exc().rstrip())  # a defect of ours, whose message may quote anything
            sys.exit(1)
