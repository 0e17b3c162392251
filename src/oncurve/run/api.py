"""`oncurve.train` and `oncurve.resume`: a run in one call, from a script or a notebook."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from oncurve.base.errors import ConfigError, refuse, without_frames
from oncurve.base.imports import trusting
from oncurve.base.output import checkpoint_may_be_asked
from oncurve.base.paths import permitted
from oncurve.components import Component
from oncurve.config import RunConfig, check_complete, explains_arguments, tables_of
from oncurve.display import Screen, say
from oncurve.durable import read_log
from oncurve.forecast import check_memory
from oncurve.models.loading import loaded_from
from oncurve.run.arguments import (
    ARGUMENT_OF,
    OTHER_NAMES,
    SFT_ARGUMENT_OF,
    CommonSettings,
    arguments_of,
    check_for_stage,
    configured,
    data_arguments,
    environment_arguments,
    objects_of,
    reward_arguments,
)
from oncurve.run.assembly import Overrides, Run, assemble
from oncurve.run.continuing import Returns, check_tracking, continued, open_to_resume, resumed_config
from oncurve.run.directory.folder import RunDirectory, if_it_fails
from oncurve.run.session import call_to_go_on, create_directory, finish, warm_up
from oncurve.run.trained import TrainedRun
from oncurve.trainer import StepResult

Environment = str | Callable[..., Any] | Mapping[str, Any] | Component
Reward = str | Callable[..., Any] | Mapping[str, Any] | Component


@explains_arguments(ARGUMENT_OF, OTHER_NAMES)
@checkpoint_may_be_asked()
def train(
    recipe: str | Path | None = None,
    *,
    model: str | Path | nn.Module | None = None,
    tokenizer: Any = None,
    reference: nn.Module | None = None,
    data: Any = None,
    template: str | None = None,
    reward: Reward | Sequence[Reward] | None = None,
    environment: Environment | None = None,
    tools: Sequence[Callable[..., Any] | str] | None = None,
    preset: str | Sequence[str] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on_step: Callable[[StepResult], None] | None = None,
    **common: Unpack[CommonSettings],
) -> TrainedRun:
    """Train a model with GRPO; returns when the steps are done (or a signal stopped them).

        def reward(completion: str, answer: str) -> float:
            return float(completion.split("####")[-1].strip() == answer)

        run = oncurve.train(model="Qwen/Qwen2.5-0.5B-Instruct", data="gsm8k.jsonl", reward=reward, steps=200,
                            template="{question}\\nEnd with #### and the number.", preset="dr_grpo")

    Args:
        recipe: a recipe's file; the other arguments change it.
        preset: a name, or several, of which the later ones win: `["dr_grpo", "lora"]`. "grpo" if neither it nor a
            recipe is given; with a recipe, in place of the presets that it extends.
        model: a directory or hub id in Hugging Face form, or a module (with `tokenizer`, unless prompts are token ids).
        reference: the reference of the KL term; None: a frozen copy of the policy as given.
        data: a JSONL file; or rows in memory, mappings of columns or prompts alone: a list, a Hugging Face `Dataset`, a
            pandas `DataFrame`, columns (`{"prompt": [...], "answer": [...]}`), or an iterator, which is read once. The
            same rows are the same run.
        template: makes the prompt from columns, `"{question}"`.
        reward: a function, a kind such as "math", a path "file.py:name", a reward model (folder or hub id), a table of
            settings, or a list of these.
        environment: a class that completions are episodes with, several by the column `environment`
            (`{"maze": Maze}`), or a path "file.py:Name"; see docs/environments.md.
        tools: functions that the model may call, or their paths.
        common: the settings that people turn most: `learning_rate`, `group_size`, `prompts_per_step`, `max_new_tokens`,
            `temperature`, `kl_coef`, ...; `oncurve.run.CommonSettings` has them all.
        settings: all others, `{"kl.estimator": "k2"}` or as nested tables `{"kl": {"estimator": "k2"}}`.
        out: the run directory, which must not exist; None: nothing is written, and nothing can be resumed.
        on_step: called after every step.

    Raises UserError for everything that the caller can fix, where possible before the model is loaded.
    """
    with _before_training():
        _check_kinds(recipe, model, tokenizer, on_step)
        named = {"template": template, "steps": steps, "seed": seed, **common}
        arguments = arguments_of(named) | _of_model(model, settings) | data_arguments(data)
        arguments |= reward_arguments(reward) | environment_arguments(environment, tools)
        config, base = configured(recipe, preset, arguments, settings)
        trained = _assembled(config, base, model, tokenizer, reference, out)
    return _run(trained, None if out is None else Path(out), on_step)


@explains_arguments(SFT_ARGUMENT_OF, OTHER_NAMES)
@checkpoint_may_be_asked()
def sft(
    recipe: str | Path | None = None,
    *,
    model: str | Path | nn.Module | None = None,
    tokenizer: Any = None,
    data: Any = None,
    eval_data: Any = None,
    template: str | None = None,
    learning_rate: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    eval_fraction: float | None = None,
    eval_every: int | None = None,
    lora_rank: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on_step: Callable[[StepResult], None] | None = None,
) -> TrainedRun:
    """Fine-tune a model on demonstrations, the warm start of a recipe with `[sft]` by itself.

        run = oncurve.sft(model="Qwen/Qwen2.5-0.5B", data="answers.jsonl", epochs=3, out="runs/warm")
        oncurve.train(model="runs/warm/model", data="questions.jsonl", reward="math", out="runs/grpo")

    Args:
        data: a file, a folder, a hub id, or rows in memory as `oncurve.train` takes them; a row has `prompt` and
            `completion`, `messages`, or `text`.
        eval_data: held-out demonstrations, in the same form; `eval/loss` is theirs, every `eval_every` steps.
        template: makes the prompt from columns, `"{question}"`.
        settings: all others, by section: `{"learner.schedule": "linear", "checkpoint.every": 50}`.

    The rest is as in `oncurve.train`. Raises UserError for everything that the caller can fix, where possible before
    the model is loaded.
    """
    said = dict(locals()) | {"model": None}  # which is no file's, perhaps
    with _before_training():
        _check_kinds(recipe, model, tokenizer, on_step)
        tables = tables_of({}, settings)
        check_for_stage(f"{section}.{key}" for section, table in tables.items() if table for key in table)
        named = {key: said[name] for key, name in SFT_ARGUMENT_OF.items() if said[name] is not None}
        arguments = {key: str(given) if isinstance(given, Path) else given for key, given in named.items()}
        config, base = configured(recipe, None, arguments | _of_model(model, settings), settings)
        trained = _assembled(config.stage, base, model, tokenizer, None, out)
    return _run(trained, None if out is None else Path(out), on_step)


def _assembled(
    config: RunConfig, base: Path, model: Any, tokenizer: Any, reference: nn.Module | None, out: str | Path | None
) -> TrainedRun:
    """Check what can be checked before the model is loaded, and put the run together."""
    loaded = loaded_from(model, tokenizer) if isinstance(model, nn.Module) else None
    check_complete(config, model_given=loaded is not None)
    given = Overrides(loaded, None if reference is None else loaded_from(reference, tokenizer))
    _check_out(config, out, given)
    if loaded is None:
        say(Screen(), *check_memory(config))
    return TrainedRun(assemble(config, base, given))


_OBJECTS = ("model", "reward", "environment", "tools")


@explains_arguments({key: name for key, name in ARGUMENT_OF.items() if name in _OBJECTS}, OTHER_NAMES)
@checkpoint_may_be_asked()
def resume(
    directory: str | Path,
    *,
    model: nn.Module | None = None,
    tokenizer: Any = None,
    reference: nn.Module | None = None,
    reward: Reward | Sequence[Reward] | None = None,
    environment: Environment | None = None,
    tools: Sequence[Callable[..., Any] | str] | None = None,
    settings: Mapping[str, Any] | None = None,
    on_step: Callable[[StepResult], None] | None = None,
    changed: bool = False,
    trust: bool = False,
) -> TrainedRun:
    """Continue a run that was stopped or killed, exactly where it was; a finished one is only loaded.

        run = oncurve.resume("runs/gsm8k", reward=reward)

    Objects that `train` was given (a module, a reward function, an environment) are in no file, so they must be given
    again. The weights come from the checkpoint, not from the module. `metrics` of the result are those of the whole
    run.

    `settings`: nested tables of settings that change from now on, `{"run": {"steps": 500}}`; the directory keeps them.
    `trust`: go on with a folder that this user has not made on this machine, and run its code.
    `changed`: continue although other settings or data have changed since the run began, which is not exact.

    Raises RunDirectoryError: it is not a run, another run uses it, or it has changed. CheckpointError: no checkpoint
    verifies. ConfigError: an object is missing, or a setting cannot change.
    """
    with _before_training(), trusting(trust):
        if not isinstance(directory, (str, Path)):
            raise ConfigError(f"directory: expected the folder of a run, got {directory!r:.60}")
        _check_kinds(None, model, tokenizer, on_step)
        path = Path(directory)
        functions = tables_of(reward_arguments(reward) | environment_arguments(environment, tools), None)
        before, config, base = resumed_config(path, (), tables_of({}, settings), functions)
        loaded = loaded_from(model, tokenizer) if model is not None else None
        check_complete(config, model_given=loaded is not None)
        resumption = open_to_resume(path, before, config, base, changed)
        given = Overrides(loaded, None if reference is None else loaded_from(reference, tokenizer))
        stopped = None
    if config.warm_starts and not resumption.done:
        stopped = warm_up(config, base, path, functions)
    with _before_training():
        trained = TrainedRun(continued(resumption, config, base, Screen(), given), stopped_by=stopped)
    with if_it_fails(trained.close):
        for line in read_log(path / "metrics.jsonl", damaged=True):
            trained.metrics.append(line) if line.get("step") != 0 else trained.run.before.update(line)
        if not resumption.finished and stopped is None:
            _finish(trained, path, on_step)
        trained.run.rest()
    return trained


@contextmanager
def _before_training() -> Iterator[None]:
    """Return a context for what comes before the first step: a closed file is a UserError, an interrupt has no
    frames.
    """
    try:
        with permitted():
            yield
    except KeyboardInterrupt:
        raise without_frames(KeyboardInterrupt("ended before the first step; nothing was trained")) from None


def _check_out(config: RunConfig, out: str | Path | None, given: Overrides) -> None:
    """Raises UserError: a run cannot be made at `out`, its trackers cannot work, or it cannot have a warm start."""
    if config.warm_starts and (out is None or given != Overrides()):
        what = "its model has a place only in a run's directory: give out" if out is None else "no file has objects"
        raise ConfigError(f"sft.data: {what}; or call oncurve.sft first, and train its model")
    if out is not None:
        RunDirectory.check_free(Path(out), call_to_go_on(Path(out), config, given)[0])
        config.data.check_keepable()
    check_tracking(config, kept=out is not None)


def _run(trained: TrainedRun, out: Path | None, on_step: Callable[[StepResult], None] | None) -> TrainedRun:
    """Begin a new run and train it."""
    with if_it_fails(trained.close):
        if out is not None:
            create_directory(trained.run, out)
        if out is not None and trained.run.config.warm_starts:
            trained.stopped_by = _begun_again(trained, out, objects_of(trained.run.config), warming=True)
        if trained.stopped_by is None:
            _finish(trained, out, on_step)
        trained.run.rest()
    return trained


def _begun_again(trained: TrainedRun, path: Path, functions: Mapping[str, Any], warming: bool = False) -> str | None:
    """Continue with what is in `path`, with `warming` after the warm start; returns the signal that stopped that, or
    None.
    """
    stopped = None

    def made() -> Run:
        nonlocal stopped
        with trusting(given=True):  # this process has had it
            config, _, base = resumed_config(path, given=functions)
        stopped = warm_up(config, base, path, functions) if warming else None
        return continued(open_to_resume(path, config, config, base), config, base, Screen())

    trained.go_back(made)
    return stopped


def _finish(trained: TrainedRun, path: Path | None, on_step: Callable[[StepResult], None] | None) -> None:
    """Train the steps that are left; after a loss of state on from the last checkpoint, unless the run has a module of
    the caller's, which training has changed."""
    returns = None if path is None or trained.run.given != Overrides() else Returns(path)
    functions = objects_of(trained.run.config)

    def steps() -> str | None:
        observers = [trained.keep, *([on_step] if on_step is not None else [])]
        return finish(trained.run, Screen(), *observers, returns=returns)

    def again() -> str | None:
        assert path is not None
        _begun_again(trained, path, functions)
        return steps()

    trained.stopped_by = steps() if returns is None else returns.over(steps, again)


def _check_kinds(recipe: Any, model: Any, tokenizer: Any, on_step: Any) -> None:
    """Raises ConfigError for arguments of a wrong type."""
    if on_step is not None and (not callable(on_step) or inspect.iscoroutinefunction(on_step)):
        raise ConfigError(
            f"on_step: expected a function, which is no coroutine, of a step's result; got {on_step!r:.60}"
        )
    if recipe is not None and not isinstance(recipe, (str, Path)):
        raise ConfigError(f"recipe: expected a file or a preset's name, got {recipe!r:.60}; name arguments: model=...")
    if model is not None and not isinstance(model, (str, Path, nn.Module)):
        raise ConfigError(f"model: expected a folder, a hub id or a torch module, got {model!r:.60}")
    if tokenizer is not None and not isinstance(model, nn.Module):
        raise ConfigError("tokenizer: goes with a module; a model from a folder or the hub brings its own")


def _of_model(model: Any, settings: Any) -> dict[str, Any]:
    """Return the model as a setting: its path, or "" for a module, which is used as it is."""
    if not isinstance(model, nn.Module):
        return {} if model is None else {"model.path": str(model)}
    said = settings.get("model", {}) if isinstance(settings, Mapping) else {}
    lost = [key for key in said if key != "path"] if isinstance(said, Mapping) else []
    refuse(f"model.{key}: set to no effect: model is a module, which is used as it is given" for key in lost)
    return {"model.path": ""}
