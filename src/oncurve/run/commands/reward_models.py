"""Reward models by themselves. `oncurve reward-model train` trains one in a run directory:

config.toml   the resolved recipe      metrics.jsonl   one line an update
checkpoints/  what a resume needs      model/          the reward model in Hugging Face form

`oncurve reward-model label` writes a policy's own samples with labels, as training data.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny
from rich.console import Console

from oncurve import durable
from oncurve.base.errors import CheckpointError, ConfigError, DataError, LostFileError, command, refuse
from oncurve.base.paths import usable_path
from oncurve.cluster import Cluster
from oncurve.components import Component, kind_of, rules_of
from oncurve.config import CheckpointSettings, RunConfig, Schema, Section, check_complete, load, to_toml
from oncurve.display import Screen, say
from oncurve.durable import AppendLog
from oncurve.machine import contention
from oncurve.machine.threads import prepare_process
from oncurve.models import LoraSettings, module_device
from oncurve.models.classifiers import PLURALS, with_adapter
from oncurve.report import rendered
from oncurve.reward_models import (
    REWARD_EXAMPLE_KINDS,
    REWARD_MODEL_KINDS,
    OutcomeModel,
    Preferences,
    RewardExamples,
    RewardModelSettings,
    RewardTraining,
    example_to_json,
    updates_of,
)
from oncurve.rewards import component_names
from oncurve.rollout import sample
from oncurve.run.arguments import free_directory
from oncurve.run.assembly import Run, assemble
from oncurve.run.directory.folder import RunDirectory, describe_environment, environment_changes
from oncurve.run.directory.identity import defaults_of, identify, take_up
from oncurve.run.loop import Kind, LabellingInputs, labeller, order_of
from oncurve.types import Group


class RewardRunSettings(Component):
    """The training as a whole."""

    seed: int = 0
    """Seed of the order of examples."""

    name: str | None = None
    """The name of the folder; none: "reward-model"."""

    threads: int | None = Field(default=None, ge=1, le=1024)
    """Processor threads; none: one per core."""


class RewardEvalSettings(Component):
    """Evaluation of the reward model on held-out examples during training."""

    every: int = Field(default=50, ge=0, le=10**9)
    """Updates between evaluations; 0: only at the end."""


class RewardModelRecipe(Component):
    """All settings of a reward model's training. In `[checkpoint]`, `every` counts updates."""

    run: RewardRunSettings = RewardRunSettings()
    data: SerializeAsAny[RewardExamples] = Preferences()
    reward_model: SerializeAsAny[RewardModelSettings] = OutcomeModel()
    lora: LoraSettings = LoraSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    eval: RewardEvalSettings = RewardEvalSettings()


REWARD_MODEL = Schema(
    RewardModelRecipe,
    {
        "data": Section(REWARD_EXAMPLE_KINDS, "preferences"),
        "reward_model": Section({name: cls for name, cls in REWARD_MODEL_KINDS.items() if name != "none"}, "outcome"),
    },
    command="reward-model train",
)
"""The recipe of a reward model."""


def load_reward_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> tuple[RewardModelRecipe, Path]:
    """Return the recipe and its folder. Raises ConfigError: unknown keys, kinds that do not go together, no path."""
    config, folder, _ = load(REWARD_MODEL, recipe, overrides)
    if config.data.teaches != config.reward_model.head:
        kind = kind_of(config.data, REWARD_EXAMPLE_KINDS)
        taught = f'data.kind = "{kind}" teaches a model of kind = "{config.data.teaches}"'
        raise ConfigError(f"reward_model.kind: {taught}; set the one or the other")
    if not config.reward_model.path:
        raise ConfigError("reward_model.path: missing; name a language model's or a reward model's folder, or a hub id")
    if not config.data.path:
        raise ConfigError("data.path: missing; name a JSONL file")
    refuse(rule.message for rule in rules_of(config.lora, "impossible") if rule.holds(config.lora))
    return config, folder


def _prepare(config: RewardModelRecipe, base: Path, folder: Path) -> tuple[RewardTraining, list[str]]:
    """Return a training that is ready to begin, and its plan. Cheap checks first: the data, then the network."""
    prepare_process(config.run.threads)
    train, held_out = config.data.read(base)
    if not train:
        raise DataError(f"{config.data.path}: no example is left to train on; lower data.eval_fraction")
    settings = config.reward_model
    classifier = with_adapter(settings.load(new_head=True), config.lora, config.run.seed)
    learner = settings.build(classifier)
    kept, kept_out = learner.fitting(train), learner.fitting(held_out)
    if not kept:
        reads = f"{classifier.name} reads {classifier.max_length} tokens, and each is longer or has no label"
        raise DataError(f"none of {len(train)} examples can be learned from: {reads}")
    learner.pace.total = updates_of(len(kept), settings.batch_size, settings.epochs)

    def held_out_metrics() -> dict[str, float]:
        measured = learner.measure(kept_out) if kept_out else {}
        return {f"reward_model/heldout_{key}": value for key, value in measured.items()}

    training = RewardTraining(
        learner,
        kept,
        config.run.seed,
        folder,
        every=config.eval.every,
        keep_every=config.checkpoint.every,
        keep=config.checkpoint.keep,
        evaluate=held_out_metrics,
        environment=describe_environment(module_device(classifier.module).type),
    )
    lost = len(train) + len(held_out) - len(kept) - len(kept_out)
    parameters = sum(parameter.numel() for parameter in classifier.module.parameters())
    about = {"s": settings, "plural": PLURALS[settings.head], "classifier": classifier, "learner": learner}
    counts = {"kept": kept, "held_out": kept_out, "lost": lost, "updates": training.updates, "parameters": parameters}
    return training, rendered("reward_training.j2", **about, **counts).splitlines()


def train_reward_model(config: RewardModelRecipe, base: Path, out: Path | None) -> str | None:
    """Train into `out` (None: a free folder under runs/); returns the signal that stopped it, or None.

    Raises UserError before anything expensive; nothing is overwritten.
    """
    out = out or free_directory(config.run.name or "reward-model")
    RunDirectory.check_free(out)
    training, plan = _prepare(config, base, out)
    with RunDirectory.create(out, training.environment) as directory:
        with directory.beginning():
            content = to_toml(config, REWARD_MODEL)
            training.identity = directory.keep_identity(identify(config, REWARD_MODEL, base), content)
            directory.keep_config(content)
        return _finish(training, plan, Screen())


def resume_reward_model(directory: Path, changed: bool = False) -> str | None:
    """Continue the training in `directory`; returns the signal that stopped it, or None.

    `changed`: continue although settings or data have changed, which is not exact.
    Raises RunDirectoryError: it is no run, in use by another, or has changed. CheckpointError: no checkpoint verifies.
    """
    RunDirectory.check_run(directory)
    config, base = load_reward_recipe(directory)
    console = Screen()
    with RunDirectory.open(directory) as held:
        now = identify(config, REWARD_MODEL, base)
        identity, notes, _ = take_up(held, now, changed, (), defaults_of(config, REWARD_MODEL))
        held.sign(identity)
        say(console, *notes)
        training, plan = _prepare(config, base, directory)
        training.identity = identity
        try:
            lines = training.restore()
        except CheckpointError as error:
            again = command("reward-model", "train", directory / "config.toml")
            raise CheckpointError(f"{error}\nPut back what is missing, or train again: {again}") from error
        if training.done == training.updates and not durable.verify(directory / "model"):
            say(console, f"{directory} is finished: all {training.updates} updates are done", _product(directory))
            return None
        changes = environment_changes(training.environment_before, training.environment)
        if changes:
            lines.append("not exact: the training goes on, but not to the same bits, because " + "; ".join(changes))
        say(console, *lines, f"{directory}: {training.done} of {training.updates} updates are done")
        return _finish(training, plan, console)


def _finish(training: RewardTraining, plan: Sequence[str], console: Console) -> str | None:
    say(console, *plan, "")
    shown = max(1, training.updates // 20)

    def tell(done: int, line: dict[str, float]) -> None:
        if done % shown == 0 or done == training.updates or "reward_model/heldout_loss" in line:
            say(console, _line(done, training.updates, line))
        held_up = contention.notice()
        if held_up is not None:
            say(console, held_up)

    try:
        stopped = training.train(tell)
    except BaseException as error:
        training.close()
        if not isinstance(error, LostFileError):
            error.add_note(_stopped_at(training, type(error).__name__))
        raise
    if stopped is not None:
        say(console, "", _stopped_at(training, stopped))
        return stopped
    training.learner.export(training.folder / "model")
    say(console, "", _product(training.folder))
    return None


def _stopped_at(training: RewardTraining, stopped: str) -> str:
    newest = training.checkpoints.newest
    where = f"after update {newest}" if newest else "from the beginning (no checkpoint had been written)"
    return f"stopped by {stopped}; to continue {where}: {command('resume', training.folder)}"


SHOWN = {
    "reward_model/loss": "loss {:.3f}",
    "reward_model/accuracy": "right {:.1%}",
    "reward_model/heldout_loss": "held out: loss {:.3f}",
    "reward_model/heldout_accuracy": "right {:.1%}",
}


def _line(done: int, updates: int, line: dict[str, Any]) -> str:
    parts = [form.format(line[key]).replace("%", " %") for key, form in SHOWN.items() if key in line]
    return "  ".join([f"update {done:>{len(str(updates))}} of {updates}", *parts])


def _product(path: Path) -> str:
    return f'model   {path / "model"}   (Hugging Face form; as a reward: kind = "model" or "process_model")'


def label_samples(
    config: RunConfig, base: Path, out: Path, kind: Kind, prompts: int, verifier: str | None, continuations: int
) -> int:
    """Sample a group for each of the recipe's first `prompts` prompts, score it, and write examples to `out`.

    kind        "preferences": pairs; "steps": completions with labelled steps
    verifier    the name of the reward that labels; None: the only one
    continuations  completions from each step's end, whose share of right ones is its label; 0: the verifier scores
                steps

    Returns how many examples there are. Raises UserError: settings are lacking, `out` exists, no such reward.
    """
    if usable_path(out, "--out").exists():
        raise DataError(f"{out} exists and is not overwritten; choose another --out")
    check_complete(config)
    console = Screen()
    names = component_names(config.rewards)
    verifier = verifier or config.eval.verifier
    if verifier is None and len(names) > 1:
        raise ConfigError(f"--verifier: which of the rewards is the verifier? They are: {', '.join(names)}")
    chosen = verifier or names[0]
    if chosen not in names:
        raise ConfigError(f"--verifier: there is no reward {chosen!r}; they are: {', '.join(names)}")
    if continuations and kind == "preferences":
        raise ConfigError("--continuations: they label steps; leave them out, or choose --kind steps")
    with assemble(config.model_copy(update={"cluster": Cluster()}), base) as run:  # nothing is trained
        run.engine.follow(run.learner.weights())
        label = labeller(
            config, kind, chosen, continuations, LabellingInputs(run.engine, run.rewards, run.learner, run.loaded)
        )
        what = "pairs" if kind == "preferences" else "completions with labelled steps"
        prompts, done, count = min(prompts, len(run.prompts)), 0, 0
        try:
            with AppendLog(out) as log:
                for groups in _groups(run, config, prompts):
                    for example in label(groups):
                        log.append(example_to_json(example))
                        count += 1
                    log.sync()  # where the disk is full, nothing is gained by going on
                    done += len(groups)
                    say(console, f"{done} of {prompts} prompts, {count} {what}")
        except BaseException as error:
            error.add_note(f"{out} has {count} {what}, all those of the first {done} of {prompts} prompts")
            raise
        say(console, f"{count} {what} in {out}")
        if not count:
            out.unlink()
            why = "no two completions of a group have different scores"
            if kind == "steps":
                why = f"{chosen} scored no steps; label them by continuations (--continuations 8)"
            say(console, f"nothing to learn from: {why}")
    return count


def _groups(run: Run, config: RunConfig, prompts: int) -> Iterator[list[Group]]:
    order, cursor, draw = order_of(config, run.prompts), 0, 0
    while cursor < prompts:
        taken, cursor = order.take(cursor, min(config.data.prompts_per_step, prompts - cursor))
        yield run.rewards.score(sample(run.engine, taken, draw, config.rollout.group_size))
        draw += 1
