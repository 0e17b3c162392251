"""`oncurve eval`: a run's policy, or any model, on held-out prompts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.base.errors import ConfigError, RunDirectoryError, command
from oncurve.base.output import urgent
from oncurve.base.paths import usable_path
from oncurve.cluster import Cluster
from oncurve.config import RunConfig, check_columns, check_complete, try_rewards
from oncurve.data import Prompts, load_eval_rows, load_rows
from oncurve.evaluate import Evaluation
from oncurve.machine.threads import prepare_process
from oncurve.models import LocalWeights
from oncurve.models.layers import reach_of
from oncurve.models.loading import ADAPTER, base_of_adapter, is_adapter
from oncurve.rewards import RewardSet
from oncurve.run.arguments import configured, data_among, data_arguments, reward_arguments
from oncurve.run.assembly import Run, assemble
from oncurve.run.building import build_engine, fix_reach, host_of, opened, with_environment
from oncurve.run.directory.folder import EVAL_REPLIES, LOCK, MARK
from oncurve.run.evaluating import evaluate_policy
from oncurve.trainer import Checkpoints


def evaluate_target(
    target: str,
    overrides: Sequence[str] = (),
    *,
    recipe: str | None = None,
    n: int = 8,
    limit: int | None = None,
    data: str | None = None,
    reward: Sequence[str] = (),
    presets: Sequence[str] = (),
) -> tuple[str, Evaluation]:
    """Evaluate a run's directory, or a model (directory or hub id) on the prompts and rewards of `recipe`;
    returns its name, too.

    `data`, all of whose rows are evaluated, `reward` and `presets` are those of `train`, in place of the recipe's.

    Of a run, `model/` is evaluated where it is finished, else its newest checkpoint that verifies. A folder with an
    adapter is evaluated over the base model that it names, or that `model.path` names.
    Raises UserError for everything that the user can fix.
    """
    folder = Path(target)
    usable_path(target, "DIR|MODEL")
    is_run = (folder / "checkpoints").is_dir() or (folder / "metrics.jsonl").is_file()
    overrides, data = data_among(overrides, data)
    nothing_held_out = ("data.eval_fraction=0", "data.eval_path=null", "data.eval_split=null")
    no_training = ("eval.every=0", "eval.patience=0", "checkpoint.best=null")
    whole = [] if data is None else [*nothing_held_out, *no_training]
    words = [*whole, *overrides, *([f"eval.limit={limit}"] if limit is not None else [])]
    _check_target(target, folder, is_run or recipe is not None or bool(overrides or data or reward))
    source = recipe or (folder / "config.toml" if is_run else None)
    arguments = data_arguments(data) | reward_arguments(list(reward) or None)

    def settings(words: Sequence[str]) -> tuple[RunConfig, Path]:
        return configured(source, list(presets) or None, arguments, overrides=words, word="--preset")

    if is_run and not (folder / "model").is_dir():
        return _unfinished(folder, *settings(words), n, data)
    config, base = settings(["model.revision=null", *words, *_model_words(target, is_run, words)])
    check_complete(config)
    prompts_of, held_out = _rows(config, base)
    prepare_process(config.run.threads)
    with RewardSet.build(config.fitted_rewards, base=base) as rewards:
        check_columns(rewards, config.data, prompts_of)
        for line in try_rewards(rewards, config.data, prompts_of):
            urgent(f"oncurve: {line}")
        give_own_model(rewards, config, folder / "reward_model")
        loaded = config.model.build(lora=config.lora)
        prompts = opened(prompts_of, config, loaded)
        known = [prompts]
        if is_run and held_out and reach_of(loaded.model.module) is not None:  # rotary positions reach as in the run
            known.append(opened(load_rows(config.data, base), config, loaded))
        fix_reach(loaded.model, config, *known)
        prompts = prompts.first(config.eval.limit)
        engine = with_environment(config, build_engine(config, loaded), loaded, rewards, host_of(config, base))
        with closing(engine):
            engine.follow(LocalWeights(loaded.model, 0))
            with answers_kept(rewards, folder if is_run else None):
                found = evaluate_policy(engine, rewards, prompts, config, n)
            return target, replace(found, held_out=held_out, source=data)


def _check_target(target: str, folder: Path, told: bool) -> None:
    """Raises UserError: there is no such folder, it is a recipe, or nothing tells its prompts and rewards."""
    if (target[:1] in ("/", ".", "~") or target.count("/") > 1) and not folder.expanduser().exists():
        raise RunDirectoryError(f"there is no folder {target}: name the --out of a run, or a model")
    if folder.suffix in (".toml", ".yaml", ".yml") and folder.is_file():
        raise ConfigError(f"{target} is a recipe; evaluate a model: {command('eval', 'MODEL', '--recipe', target)}")
    if not told:
        ways = ("--recipe", "RECIPE.toml"), ("--data", "FILE.jsonl", "--reward", "math")
        named = ", or by options: ".join(command("eval", target, *way) for way in ways)
        raise ConfigError(f"{target} is not a run, so its prompts and rewards must be named: {named}")


@contextmanager
def answers_kept(rewards: RewardSet, run: Path | None) -> Iterator[None]:
    """Inside, answers that rewards ask for are kept in the folder `run`, apart from those of its training.

    So an evaluation that is repeated, or was interrupted, pays for none twice. Nothing is kept without a run, where
    another evaluation of it goes on, and where its folder cannot be written.
    """
    with ExitStack() as held:
        if run is not None and rewards.keeps:
            with suppress(OSError, durable.StorageError):
                folder = run / EVAL_REPLIES
                folder.mkdir(exist_ok=True)
                held.callback(os.close, durable.hold(folder / LOCK, MARK))
                rewards.keep_in(folder)
        yield


def _model_words(target: str, is_run: bool, said: Sequence[str]) -> list[str]:
    """Return the settings that name the weights of `target`, a run or a model: those that are `said` remain."""
    folder = Path(target).expanduser()
    if is_run and not any((folder / "model").glob("*.safetensors")):  # the adapter of a quantised base, alone
        return [f"lora.path={folder / 'model' / ADAPTER}"]
    if is_run:  # its model has the adapter merged into the weights
        return [f"model.path={folder / 'model'}", "lora.rank=0", "lora.path=null"]
    keys = {word.partition("=")[0].partition(".")[0] for word in said}
    if is_adapter(folder):
        base = [] if any(word.startswith("model.path=") for word in said) else [f"model.path={base_of_adapter(folder)}"]
        return [*base, f"lora.path={folder}"]
    return [f"model.path={target}", *([] if "lora" in keys else ["lora.rank=0", "lora.path=null"])]


def give_own_model(rewards: RewardSet, config: RunConfig, trained: Path) -> None:
    """Give rewards the run's own reward model: that of its iterations (`trained`), if there is one."""
    settings = config.own_reward_model
    if settings is not None:
        path = str(trained) if trained.is_dir() else settings.path
        rewards.score_with(settings.model_copy(update={"path": path}).load(masters=False))


def prompts_from(run: Run, rows: Any) -> Prompts:
    """Return rows in memory as prompts to evaluate a run of rows in memory on.

    Raises DataError, with the row's place, as of the run's held-out rows.
    """
    settings = run.config.data
    given = {name: getattr(settings, name) for name in type(settings).model_fields}
    settings = type(settings)(**{**given, "eval_rows": rows})
    held_out = load_eval_rows(settings)
    check_columns(run.rewards, settings, held_out)
    prompts = opened(held_out, run.config.model_copy(update={"data": settings}), run.loaded)
    fix_reach(run.loaded.model, run.config, run.prompts, run.eval_prompts, prompts)
    return prompts


def _unfinished(folder: Path, config: RunConfig, base: Path, n: int, data: str | None) -> tuple[str, Evaluation]:
    """Return the evaluation of the newest checkpoint of a run that has not ended."""
    with assemble(config.model_copy(update={"cluster": Cluster()}), base, resumed=True) as run:  # nothing is trained
        found = Checkpoints(folder / "checkpoints", config.checkpoint.keep).restore(run.learner, run.trainer.outer)
        if found is None:
            raise RunDirectoryError(f"{folder} has neither a model nor a checkpoint yet; {command('resume', folder)}")
        with answers_kept(run.rewards, folder):
            return f"{folder}, step {found[0].step}", replace(run.evaluate(n), source=data)


def _rows(config: RunConfig, base: Path) -> tuple[Any, bool]:
    held_out = load_eval_rows(config.data, base)
    return (held_out, True) if len(held_out) else (load_rows(config.data, base), False)
