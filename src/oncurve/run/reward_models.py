"""`oncurve reward-model train`: a reward model from judged examples, by itself, in a run directory.

config.toml   the resolved recipe      metrics.jsonl   one line an update
checkpoints/  what a resume needs      model/          the reward model in Hugging Face form
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny
from rich.console import Console

from oncurve import durable, processors
from oncurve.data import JUDGEMENT_KINDS, Judgements
from oncurve.data.judgements import Preferences
from oncurve.display import Screen, say
from oncurve.errors import CheckpointError, ConfigError, DataError, command
from oncurve.evaluate.first_wrong import FirstWrong, judge_first_wrong
from oncurve.learner.reward_model import (
    REWARD_MODEL_KINDS,
    Example,
    NoRewardModel,
    OutcomeModel,
    RewardLearner,
    RewardModelSettings,
)
from oncurve.models.causal import module_device
from oncurve.models.judges import PLURALS
from oncurve.run.config import CheckpointSettings
from oncurve.run.directory import RunDirectory, describe_environment, environment_changes
from oncurve.run.identity import identify, take_up
from oncurve.run.loading import load, to_toml
from oncurve.run.process import prepare_process
from oncurve.run.schema import Schema, Section, fixed
from oncurve.run.session import free_directory
from oncurve.spec import Component
from oncurve.trainer.reward_training import RewardTraining, updates_of
from oncurve.types import LabelledSteps

__all__ = ["REWARD_MODEL", "RewardModelRecipe", "load_reward_recipe", "resume_reward_model", "train_reward_model"]


class RewardRunSettings(Component):
    """The training as a whole.

    seed      of the order of examples
    name      what the folder is called; none: "reward-model"
    threads   processor threads; none: one a core
    """

    seed: int = 0
    name: str | None = None
    threads: int | None = Field(default=None, ge=1, le=1024)


class RewardEvalSettings(Component):
    """Judging the reward model on held-out examples while it is trained.

    every   updates between evaluations; 0: only at the end
    """

    every: int = Field(default=50, ge=0, le=10**9)


class RewardModelRecipe(Component):
    """All settings of a reward model's training. In `[checkpoint]`, `every` counts updates."""

    run: RewardRunSettings = RewardRunSettings()
    data: SerializeAsAny[Judgements] = Preferences()
    reward_model: SerializeAsAny[RewardModelSettings] = OutcomeModel()
    checkpoint: CheckpointSettings = CheckpointSettings()
    eval: RewardEvalSettings = RewardEvalSettings()


REWARD_MODEL = Schema(
    RewardModelRecipe,
    {
        "run": fixed(RewardRunSettings),
        "data": Section(JUDGEMENT_KINDS, "preferences"),
        "reward_model": Section(
            {name: cls for name, cls in REWARD_MODEL_KINDS.items() if cls is not NoRewardModel}, "outcome"
        ),
        "checkpoint": fixed(CheckpointSettings),
        "eval": fixed(RewardEvalSettings),
    },
    command="reward-model train",
)
"""The recipe of a reward model."""


def load_reward_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> tuple[RewardModelRecipe, Path]:
    """The recipe and its folder. Raises ConfigError: unknown keys, kinds that do not go together, no path."""
    config, folder, _ = load(REWARD_MODEL, recipe, overrides)
    pairs, outcome = isinstance(config.data, Preferences), isinstance(config.reward_model, OutcomeModel)
    if pairs != outcome:
        kinds = ('"preferences"', '"outcome"') if pairs else ('"steps"', '"process"')
        raise ConfigError(
            f"reward_model.kind: data.kind = {kinds[0]} teaches a model of kind = {kinds[1]}; set the one or the other"
        )
    if not config.reward_model.path:
        raise ConfigError("reward_model.path: missing; name a language model's or a reward model's folder, or a hub id")
    if not config.data.path:
        raise ConfigError("data.path: missing; name a JSONL file")
    return config, folder


@dataclass
class _Prepared:
    """A training put together, and what it is judged on."""

    config: RewardModelRecipe
    training: RewardTraining
    learner: RewardLearner
    train: list[Example]
    held_out: list[Example]
    plan: list[str]

    def evaluate(self) -> dict[str, float]:
        """Held-out metrics by declared key."""
        if not self.held_out:
            return {}
        found = {f"reward_model_heldout_{k}": v for k, v in self.learner.measure(self.held_out).items()}
        first = self.first_wrong()
        return found | ({} if first is None else {"reward_model_heldout_first_wrong": first.found.value})

    def first_wrong(self) -> FirstWrong | None:
        """How well first wrong steps are found; None where that is not the question."""
        held = [example for example in self.held_out if isinstance(example, LabelledSteps)]
        if not held:
            return None
        classifier = self.learner.classifier
        read = [classifier.encode(example.prompt, example.completion, example.ends) for example in held]
        trained = [example for example in self.train if isinstance(example, LabelledSteps)]
        return judge_first_wrong(trained, held, classifier.judge(read))


def _prepare(config: RewardModelRecipe, base: Path) -> _Prepared:
    """Cheap checks first: the data, then the network."""
    prepare_process(config.run.threads)
    train, held_out = config.data.read(base)
    if not train:
        raise DataError(f"{config.data.path}: no example is left to train on; lower data.eval_fraction")
    settings = config.reward_model
    classifier = settings.load(new_head=True)
    learner = settings.build(classifier)
    kept, kept_out = learner.fitting(train), learner.fitting(held_out)
    if not kept:
        raise DataError(
            f"none of {len(train)} examples fits: {classifier.name} reads {classifier.max_length} tokens; "
            "take a model that reads more"
        )
    learner.total_updates = updates_of(len(kept), settings.batch_size, settings.epochs)
    training = RewardTraining(
        learner,
        kept,
        config.run.seed,
        every=config.eval.every,
        keep_every=config.checkpoint.every,
        keep=config.checkpoint.keep,
        environment=describe_environment(module_device(classifier.module).type),
    )
    what = "pairs" if isinstance(config.data, Preferences) else "completions with labelled steps"
    lost = len(train) + len(held_out) - len(kept) - len(kept_out)
    parameters = sum(parameter.numel() for parameter in classifier.module.parameters())
    plan = [
        f"reward model  {classifier.name}, {parameters:,} parameters, of {PLURALS[settings.head]}, in {settings.dtype}",
        f"data          {len(kept):,} {what} to learn from, {len(kept_out):,} held out"
        + (f"; {lost:,} left out, too long for {classifier.max_length} tokens or without a label" if lost else ""),
        f"training      {settings.epochs} x {len(kept):,} examples, {settings.batch_size} an update = "
        f"{training.updates:,} updates at {settings.learning_rate:g}",
    ]
    prepared = _Prepared(config, training, learner, kept, kept_out, plan)
    training.evaluate = prepared.evaluate
    return prepared


def train_reward_model(config: RewardModelRecipe, base: Path, out: Path | None) -> str | None:
    """Train as `config` says into `out` (a free folder under runs/ if None); the signal that stopped it, or None.

    Raises UserError before anything expensive; nothing is overwritten.
    """
    out = out or free_directory(config.run.name or "reward-model")
    RunDirectory.check_free(out)
    prepared = _prepare(config, base)
    directory = RunDirectory.create(out, dict(prepared.training.environment or {}))
    with closing(directory):
        try:
            prepared.training.identity = identify(config, REWARD_MODEL, base)
            directory.keep_identity(prepared.training.identity)
            directory.keep_config(to_toml(config, REWARD_MODEL))
        except BaseException:
            directory.abandon()
            raise
        prepared.training.folder = out
        return _finish(prepared, Screen())


def resume_reward_model(directory: Path, changed: bool = False) -> str | None:
    """Go on with the training in `directory`; the signal that stopped it, or None.

    `changed`: go on although settings or data are not what they were, which is not exact.
    Raises RunDirectoryError: it is no run, held by another, or has changed. CheckpointError: no checkpoint verifies.
    """
    RunDirectory.check_run(directory)
    config, base = load_reward_recipe(directory / "config.toml")
    console = Screen()
    with closing(RunDirectory.open(directory)) as held:
        identity, said = take_up(held, identify(config, REWARD_MODEL, base), changed)
        say(console, *said)
        prepared = _prepare(config, base)
        training = prepared.training
        training.identity = identity
        training.folder = directory
        try:
            lines = training.restore()
        except CheckpointError as error:
            again = command("reward-model", "train", directory / "config.toml")
            raise CheckpointError(f"{error}\nPut back what is missing, or train again: {again}") from error
        if training.done == training.updates and not durable.verify(directory / "model"):
            say(console, f"{directory} is finished: all {training.updates} updates are done", _product(directory))
            return None
        before, now = training.environment_before, training.environment
        changes = environment_changes(dict(before), dict(now)) if before is not None and now is not None else []
        if changes:
            lines.append("not exact: the training goes on, but not to the same bits, because " + "; ".join(changes))
        say(console, *lines, f"{directory}: {training.done} of {training.updates} updates are done")
        return _finish(prepared, console)


def _finish(prepared: _Prepared, console: Console) -> str | None:
    training, folder = prepared.training, prepared.training.folder
    assert folder is not None
    say(console, *prepared.plan, "")
    shown = max(1, training.updates // 20)

    def tell(done: int, line: dict[str, float]) -> None:
        if done % shown == 0 or done == training.updates or "reward_model_heldout_loss" in line:
            say(console, _line(done, training.updates, line))
        held_up = processors.notice()
        if held_up is not None:
            say(console, held_up)

    try:
        stopped = training.train(tell)
    except BaseException as error:
        training.close()
        say(console, "", _stopped_at(training, type(error).__name__))
        raise
    if stopped is not None:
        say(console, "", _stopped_at(training, stopped))
        return stopped
    prepared.learner.save(folder / "model")
    first = prepared.first_wrong()
    said = ["", *([first.text()] if first is not None else []), _product(folder)]
    say(console, *said)
    return None


def _stopped_at(training: RewardTraining, stopped: str) -> str:
    where = f"after update {training.newest}" if training.newest else "from the beginning: there is no checkpoint"
    return f"stopped by {stopped}; it goes on {where}, with: {command('resume', training.folder)}"


def _line(done: int, updates: int, line: dict[str, Any]) -> str:
    parts = [f"update {done:>{len(str(updates))}} of {updates}"]
    for key, form in (
        ("reward_model_loss", "loss {:.3f}"),
        ("reward_model_accuracy", "right {:.1%}"),
        ("reward_model_heldout_loss", "held out: loss {:.3f}"),
        ("reward_model_heldout_accuracy", "right {:.1%}"),
        ("reward_model_heldout_first_wrong", "first wrong step {:.1%}"),
    ):
        if key in line:
            parts.append(form.format(line[key]).replace("%", " %"))
    return "  ".join(parts)


def _product(path: Path) -> str:
    return f'model   {path / "model"}   (Hugging Face form; as a reward: kind = "model" or "process_model")'
