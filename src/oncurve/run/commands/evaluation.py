"""Rewards and policies, looked at apart from a run.

`oncurve eval`: a run's policy, or any model, on held-out prompts. `oncurve reward check`: a recipe's rewards on
completions, as a table, before a run.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.base.errors import ConfigError, DataError, RunDirectoryError, command, suggest
from oncurve.base.output import urgent
from oncurve.base.paths import usable_path
from oncurve.cluster import Cluster
from oncurve.config import RunConfig, check_columns, check_complete, try_rewards
from oncurve.data import (
    MISSING,
    Files,
    Prompts,
    Rows,
    load_eval_rows,
    load_rows,
    prompt_columns,
    read_rows,
    template_columns,
    value_at,
)
from oncurve.display import one_line
from oncurve.evaluate import Evaluation
from oncurve.machine.threads import prepare_process
from oncurve.models import LocalWeights
from oncurve.models.layers import reach_of
from oncurve.models.loading import ADAPTER, base_of_adapter, is_adapter
from oncurve.report import group_record, rendered
from oncurve.rewards import RewardSet
from oncurve.rollout import sample as sample_groups
from oncurve.run.arguments import configured, data_among, data_arguments, reward_arguments
from oncurve.run.assembly import Run, assemble
from oncurve.run.building import build_engine, fix_reach, host_of, opened, read_tokenizer, with_environment
from oncurve.run.commands.exporting import chosen
from oncurve.run.directory.folder import EVAL_REPLIES, LOCK, MARK
from oncurve.run.loop import evaluate_policy, step_locator
from oncurve.trainer import Checkpoints
from oncurve.types import Completion, Group, Prompt

NOTHING_HELD_OUT = ("data.eval_fraction=0", "data.eval_path=null", "data.eval_split=null")
NO_TRAINING = ("eval.every=0", "eval.patience=0", "checkpoint.best=null")


def evaluate_target(
    target: str,
    overrides: Sequence[str] = (),
    *,
    recipe: str | None = None,
    step: str | None = None,
    n: int = 8,
    limit: int | None = None,
    data: str | None = None,
    reward: list[str] | None = None,
    presets: list[str] | None = None,
) -> tuple[str, Evaluation]:
    """Evaluate a run's directory, or a model (directory or hub id) on the prompts of `recipe`; returns its name, too.

    `data`, all of whose rows are evaluated, `reward` and `presets` are those of `train`, in place of the recipe's.

    Of a run, the checkpoint of `step` (a number, or "best") is evaluated; without it `model/` where the run is
    finished, else its newest checkpoint that verifies. A folder with an adapter is evaluated over the base model that
    it names, or that `model.path` names.
    Raises UserError for everything that the user can fix.
    """
    folder = Path(target)
    usable_path(target, "DIR|MODEL")
    is_run = (folder / "checkpoints").is_dir() or (folder / "metrics.jsonl").is_file()
    overrides, data = data_among(overrides, data)
    whole = (*NOTHING_HELD_OUT, *NO_TRAINING) if data is not None else ()
    words = [*whole, *overrides, *[f"eval.limit={limit}"] * (limit is not None)]
    _check_target(target, folder, is_run or recipe is not None or bool(overrides or data or reward))
    source = recipe or (folder / "config.toml" if is_run else None)
    arguments = data_arguments(data) | reward_arguments(reward)

    def settings(words: Sequence[str]) -> tuple[RunConfig, Path]:
        return configured(source, presets, arguments, overrides=words, word="--preset")

    if is_run and (step is not None or not (folder / "model").is_dir()):
        return _of_checkpoint(folder, *settings(words), step, n, data)
    if step is not None:
        raise ConfigError(f"--step: {target} is no run, and only a run has checkpoints of steps; leave it out")
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
        raise ConfigError(f"there is no run {target}; where it is a model, name prompts and rewards, too: {named}")


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
    settings = type(run.config.data)(**{**dict(run.config.data), "eval_rows": rows})
    held_out = load_eval_rows(settings)
    check_columns(run.rewards, settings, held_out)
    prompts = opened(held_out, run.config.model_copy(update={"data": settings}), run.loaded)
    fix_reach(run.loaded.model, run.config, run.prompts, run.eval_prompts, prompts)
    return prompts


def _of_checkpoint(
    folder: Path, config: RunConfig, base: Path, step: str | None, n: int, data: str | None
) -> tuple[str, Evaluation]:
    """Return the evaluation of a checkpoint of a run, which may be going on: by default of the newest."""
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint.keep)
    found = None if step is None else chosen(checkpoints, step, folder, config)
    with assemble(config.model_copy(update={"cluster": Cluster()}), base, resumed=True) as run:  # nothing is trained
        found = found or chosen(checkpoints, None, folder, config)
        checkpoints.restore(run.learner, run.trainer.outer, found=found)
        with answers_kept(run.rewards, folder):
            name = f"{folder}, step {found.record['trainer']['step']}"
            return name, replace(run.evaluate(n), source=data)


def _rows(config: RunConfig, base: Path) -> tuple[Any, bool]:
    held_out = load_eval_rows(config.data, base)
    return (held_out, True) if len(held_out) else (load_rows(config.data, base), False)


SHOWN = ("reward", "parts", "fault", "text", "turns")
"""What `group_record` has of a completion that is shown."""


@dataclass(frozen=True)
class RewardCheck:
    """The completions of every prompt, `(place, prompt, completions)`, with what the rewards give them.

    source     where the completions come from, in words
    names      the rewards, in the order of the recipe
    warnings   of the trial of the rewards on the first row
    """

    source: str
    names: tuple[str, ...]
    groups: tuple[tuple[str, str, list[dict[str, Any]]], ...]
    warnings: tuple[str, ...] = ()

    @property
    def worthless(self) -> bool:
        """Return whether all completions and a reference answer have the reward 0: the rewards are wrong, not the
        model.
        """
        return bool(self.warnings) and all(one["reward"] == 0 for one in self._all())

    def text(self) -> str:
        """Return the table, and for each reward its mean and range."""
        every = self._all()
        differ = [len({one["reward"] for one in scored}) > 1 for _, _, scored in self.groups if len(scored) > 1]
        values = [(name, [one["parts"].get(name) for one in every]) for name in self.names]
        values.append(("reward", [one["reward"] for one in every]))
        summaries = [(name, *_summary(given)) for name, given in values]
        counts = {"several": len(differ), "differing": sum(differ)}
        shown = {"one_line": one_line, "summaries": summaries}
        return rendered("reward_check.j2", r=self, every=every, **counts, **shown).rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("place", "prompt", "completions")
        about = {"source": self.source, "rewards": list(self.names), "warnings": list(self.warnings)}
        return about | {"groups": [dict(zip(names, group, strict=True)) for group in self.groups]}

    def _all(self) -> list[dict[str, Any]]:
        return [one for _, _, scored in self.groups for one in scored]


def _summary(values: Sequence[float | None]) -> tuple[Sequence[float | None], int]:
    """Return mean, least and largest of the numbers, and how many are none."""
    known = [value for value in values if value is not None]
    numbers = (math.fsum(known) / len(known), min(known), max(known)) if known else (None,) * 3
    return numbers, len(values) - len(known)


def check_rewards_of(
    config: RunConfig,
    base: Path,
    sample: bool = False,
    file: Path | None = None,
    column: str = "completion",
    prompts: int = 4,
) -> RewardCheck:
    """Score completions with the rewards of a configuration. `base` is where its relative paths start.

    sample      sample them with the recipe's model, `rollout.group_size` for each prompt
    file        else: rows with completions, in place of the recipe's data
    column      else: the column with a completion, or with a list of them; `solutions.best` is a part of a table
    prompts     how many rows are taken, the first ones

    Raises UserError: no completions, or settings that are lacking. TrainingError: every completion has a fault.
    """
    if sample and file is not None:
        raise ConfigError("--sample and --completions are two sources of completions: give one of them")
    if file is not None:
        shared = {key: getattr(config.data, key) for key in SHARED}
        config = config.model_copy(update={"data": Files(path=str(file.absolute()), **shared)})
    check_complete(config)
    whole = load_rows(config.data, base) if file is None else read_rows(config.data, None)[0]
    rows = whole.first(prompts)
    given = None if sample else [_given(rows, index, column) for index in range(len(rows))]
    prepare_process(config.run.threads)
    with RewardSet.build(config.fitted_rewards, base=base) as rewards:
        check_columns(rewards, config.data, rows)
        warnings = try_rewards(rewards, config.data, rows)
        give_own_model(rewards, config, Path("reward_model"))
        if given is None:
            groups = _sampled(rows, config, rewards, base)
            source = f"sampled from {config.model.path} at temperature {config.rollout.temperature:g}"
        else:
            groups = _groups(rows, given, config, rewards)
            source = f"from the column {column!r} of " + ("the recipe's data" if file is None else str(file))
            source += f" ({prompts} of {len(whole):,} rows; --prompts takes more)" * (len(rows) < len(whole))
        scored = rewards.score(groups)
        names = tuple(component.name for component in rewards.components)
    shown = []
    for group in scored:
        items = [{key: one[key] for key in SHOWN if key in one} for one in group_record(group)["completions"]]
        shown.append((rows.place(group.prompt.id), group.prompt.text, items))
    return RewardCheck(source, names, tuple(shown), tuple(warnings))


SHARED = ("prompt_column", "columns", "template", "system", "chat", "chat_template_kwargs")
"""Settings of the recipe's data that hold for a file of completions, too."""


def _given(rows: Rows, index: int, column: str) -> list[str]:
    """Return the completions in a column of a row. Raises DataError: there is none, or it holds something else than
    texts.
    """
    row, place = rows.items[index], rows.place(rows.numbers[index])
    value = value_at(row, column)
    if value is MISSING:
        raise DataError(
            f"{place}: there is no column {column!r} with a completion{suggest(column, row) or ';'} it has: "
            f"{', '.join(map(str, row))}; name one with --column, a file with --completions, or use --sample"
        )
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{place}: column {column!r} must hold a completion, or a list of them, got {value!r:.60}")
    return list(texts)


def _groups(rows: Rows, given: Sequence[Sequence[str]], config: RunConfig, rewards: RewardSet) -> list[Group]:
    """Return the given completions as if they had been sampled, with the tokens that the model's tokenizer makes of
    them.
    """
    tokenizer, _ = read_tokenizer(config)
    rewards.locate = step_locator(tokenizer)
    groups = []
    for index, texts in enumerate(given):
        completions = []
        for number, text in enumerate(texts):
            ids = tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
            completions.append(Completion(ids, text, (0.0,) * len(ids), "eos", number, 0))
        groups.append(Group(_prompt(rows, index, config, tokenizer), tuple(completions)))
    return groups


def _prompt(rows: Rows, index: int, config: RunConfig, tokenizer: Any) -> Prompt:
    """Return the prompt of a row; of a row of completions that has none, an empty one with its columns."""
    row = rows.items[index]
    names = (config.data.prompt_column,) if config.data.template is None else template_columns(config.data.template)
    if all(row.get(name) is not None for name in names):
        return Prompts(rows, config.data, tokenizer)[index]
    return Prompt(rows.numbers[index], "", (), prompt_columns({**dict.fromkeys(names), **row}, config.data))


def _sampled(rows: Rows, config: RunConfig, rewards: RewardSet, base: Path) -> list[Group]:
    """Return groups that the recipe's model writes, as a run's first step would sample them."""
    loaded = config.model.build(lora=config.lora, seed=config.run.seed)
    prompts = opened(rows, config, loaded)
    fix_reach(loaded.model, config, prompts)
    rewards.locate = step_locator(loaded.tokenizer)
    inner = build_engine(config, loaded)
    with closing(with_environment(config, inner, loaded, rewards, host_of(config, base))) as engine:
        engine.follow(LocalWeights(loaded.model, 0))
        asked, sampling = [prompts[index] for index in range(len(prompts))], config.rollout
        return sample_groups(engine, asked, 0, sampling.group_size, sampling)
