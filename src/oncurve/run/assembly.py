"""The composition root: builds a run from its settings. No other module imports every room."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from oncurve.advantages import reads_rewards, teacher_of
from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError
from oncurve.config import AdapterFacts, RunConfig, RunFacts, check_columns, try_rewards
from oncurve.data import (
    TOOLS,
    DemonstrationRows,
    Demonstrations,
    Prompts,
    Rows,
    distinct_prompts,
    load_eval_rows,
    load_rows,
)
from oncurve.environments import Host
from oncurve.evaluate import Evaluation
from oncurve.forecast import training_bytes
from oncurve.learner import Learner
from oncurve.machine.threads import prepare_process
from oncurve.models import LoadedModel, adapted, module_device
from oncurve.reward_models import Iterations
from oncurve.rewards import RewardSet, verifier_of
from oncurve.rollout import RolloutEngine, check_token_ids
from oncurve.run.building import (
    begun_at,
    build_engine,
    build_learner,
    demonstrations_of,
    engine_maker,
    first_episode,
    fix_reach,
    held_out_loss,
    host_of,
    load_teacher,
    opened,
    read_tokenizer,
    shows_tools,
    with_environment,
)
from oncurve.run.commands.exporting import write_card
from oncurve.run.directory.folder import REPLIES, RunDirectory, describe_environment, environment_changes, if_it_fails
from oncurve.run.loop import (
    LabellingInputs,
    credit_of,
    evaluate_policy,
    groups_of,
    iterations,
    results_by_problem,
    step_locator,
    trainer_config,
)
from oncurve.trainer import (
    Checkpoints,
    Recorder,
    ReferenceSchedule,
    StepResult,
    Trainer,
    TrainerState,
)


@dataclass(frozen=True)
class Overrides:
    """Objects handed over from Python in place of what the settings would load; None: load it."""

    model: LoadedModel | None = None
    reference: LoadedModel | None = None


@dataclass
class Run(Closing):
    """A run put together and ready: `train`, `evaluate`, `save_model`. A context manager that ends its workers."""

    config: RunConfig
    directory: RunDirectory | None
    loaded: LoadedModel
    learner: Learner
    engine: RolloutEngine
    rewards: RewardSet
    prompts: Prompts
    eval_prompts: Prompts
    trainer: Trainer
    given: Overrides = Overrides()
    teacher: LoadedModel | None = None
    iterations: Iterations | None = None
    demonstrations: Demonstrations | None = None
    held_out: Demonstrations | None = None
    """Held-out demonstrations of a warm start."""
    before: dict[str, float] = field(default_factory=dict)
    """The metrics of the evaluation before step 1; empty where there was none."""

    def close(self) -> None:
        """Close engine, learner, reward workers and logs, let go of the directory. Twice is allowed."""
        groups = self.trainer.groups
        _each(groups.rest, self.engine.close, self.learner.close, self.rewards.close, groups.close, self.let_go)

    def rest(self) -> None:
        """No step follows: let go of the directory, and of what training alone needs, the other processes of a cluster
        and earlier weights. `evaluate` and `save_model` go on in this process. Twice is allowed."""
        groups = self.trainer.groups
        _each(groups.rest, lambda: self.config.cluster.rest(self.learner, self.engine), groups.close, self.let_go)

    def let_go(self) -> None:
        """Close the logs and let go of the directory, whose `path` is still known: another run may go on with it."""
        recorder, self.trainer.recorder = self.trainer.recorder, None
        replay = None if self.iterations is None else self.iterations.replay
        held = (replay, recorder, self.directory)
        _each(*(each.close for each in held if each is not None))

    def train(self, *observers: Callable[[StepResult], None]) -> str | None:
        """Run the steps that are left; the name of the signal that ended it early, or None."""
        self.trainer.observers = observers
        return self.trainer.train()

    @property
    def trained_on(self) -> Prompts | Demonstrations:
        """Return the prompts that the steps train on, or in a warm start the demonstrations."""
        return self.prompts if self.demonstrations is None else self.demonstrations

    def facts(self) -> RunFacts:
        """Return the part of the plan that is known once everything is loaded."""
        given, adapter = self.given.reference, self.loaded.model.adapter
        reference = self.loaded if given is None and self.config.kl.needs_reference else given
        teacher = None if self.teacher is self.loaded else self.teacher
        asked = self.config.data, self.config.environment.present
        width, trained = self.loaded.dtype.itemsize, _count(adapter.parameters.values() if adapter else ())
        return RunFacts(
            rows=len(self.trained_on),
            eval_rows=len(self.eval_prompts),
            distinct=None if self.demonstrations else distinct_prompts(self.prompts.rows, *asked),
            eval_distinct=distinct_prompts(self.eval_prompts.rows, *asked),
            dropped=self.trained_on.dropped,
            truncated=self.prompts.truncated,
            parameters=_parameters(self.loaded),
            reference_given=given is not None,
            reference_bytes=None if reference is None else width * _parameters(reference),
            teacher_bytes=None if teacher is None else width * _parameters(teacher),
            kept=self.directory is not None,
            device=str(module_device(self.loaded.model.module)),
            path_reason=self.loaded.model.path_reason,
            precision=f"{str(self.loaded.dtype).removeprefix('torch.')} ({self.loaded.dtype_reason})",
            adapter=None
            if adapter is None
            else AdapterFacts(adapter.rank, adapter.alpha, len(adapter.paths), trained, width * trained),
        )

    def evaluate(self, n: int = 0) -> Evaluation:
        """Greedy, and n samples a prompt where n > 0, with the weights as they are.

        On the held-out prompts; where there are none, on those of the training data, which `held_out` says.
        """
        self.engine.follow(self.learner.weights())
        held_out = len(self.eval_prompts) > 0
        prompts = self.eval_prompts if held_out else self.prompts.first(self.config.eval.limit)
        if not len(prompts):
            raise ConfigError("evaluate: a run on demonstrations samples for the prompts of [data]; set data.path")
        return replace(evaluate_policy(self.engine, self.rewards, prompts, self.config, n), held_out=held_out)

    def measured(self, step: int) -> dict[str, float]:
        """Return what an evaluation while training adds to the metrics of `step`; of a warm start also the loss."""
        samples = self.demonstrations is None or (len(self.eval_prompts) > 0 and bool(self.config.rewards))
        found = self.recorded(step, self.evaluate(self.config.eval.n)).to_metrics() if samples else {}
        return found if self.held_out is None else found | held_out_loss(self.learner, self.held_out)

    def recorded(self, step: int, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation after `step`, whose results by problem the run's directory keeps, if there is one."""
        if self.trainer.recorder is not None:
            self.trainer.recorder.evaluation(step, results_by_problem(evaluation, self.config))
        return evaluation

    def save_model(self, path: Path) -> None:
        """Write the policy in Hugging Face form, from the full-precision masters, with its model card."""
        self.learner.export(path)
        write_card(path, self.config, None if self.directory is None else self.directory.path, self.trainer.state.step)

    def open_directory(self, directory: RunDirectory, identity: Mapping[str, Any] | None = None) -> None:
        """Write into `directory` from now on: checkpoints, which name the run they are of, and what steps leave."""
        self.directory = directory
        self.rewards.keep_in(directory.path / REPLIES)
        if self.iterations is not None:
            self.iterations.replay.folder = directory.path
        self.trainer.checkpoints = Checkpoints(directory.checkpoints, self.config.checkpoint.keep, identity)

    def check_kept(self) -> None:
        """Raises LostFileError: the run's directory was deleted, moved or replaced by another one."""
        if self.trainer.recorder is not None:
            self.trainer.recorder.check()

    def restore(self) -> list[str]:
        """Load the newest checkpoint that verifies; returns remarks on it for the user, one per line."""
        assert self.trainer.checkpoints is not None
        assert self.directory is not None
        found = self.trainer.checkpoints.restore(self.learner, self.trainer.outer, self.trainer.groups)
        if found is None:
            lines = ["there is no checkpoint; the run begins again at step 1"]
        else:
            self.trainer.state, before, lines = found
            changes = environment_changes(before, self.trainer.config.environment)
            if changes:
                lines.append("not exact: the run goes on, but not to the same bits, because " + "; ".join(changes))
        return [*lines, *self.record()]

    def record(self) -> list[str]:
        """Write down the steps that follow; returns remarks on the files that are there."""
        assert self.directory is not None
        self.directory.check_kept()
        trainer = self.trainer
        verifier = verifier_of(self.config.rewards, self.config.eval.verifier)
        kept = self.config.rollouts, trainer.refusals, self.loaded.tokenizer, verifier
        trainer.recorder = Recorder(self.directory.path, trainer.state, *kept)
        return trainer.recorder.notes


def _each(*steps: Callable[[], object]) -> None:
    """Do all the steps in their order, whatever one of them raises."""
    with ExitStack() as all_of_them:
        for step in reversed(steps):
            all_of_them.callback(step)


def _parameters(loaded: LoadedModel) -> int:
    """Return the model's own parameters, without those of an adapter on it."""
    adapter = loaded.model.adapter
    return _count(loaded.model.module.parameters()) - _count(adapter.parameters.values() if adapter else ())


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def assemble(
    config: RunConfig,
    base: Path | None = None,
    given: Overrides | None = None,
    resumed: bool = False,
    start: Path | None = None,
) -> Run:
    """Return a run from its settings, cheap checks first: data, rewards, model, then the parts around them.

    `base` is where relative paths in the settings start (the working directory if None); `given` stands in for what
    `[model]` would load. The rewards of a run that is `resumed` are not tried again. `start` is the model of its warm
    start, with which it begins. Nothing is written: see
    `Run.open_directory`. Raises UserError for what the user can fix.
    """
    given = given or Overrides()
    if not config.cluster.facts.alone:
        config.cluster.check(module_device(given.model.model.module) if given.model else config.model.torch_device)
    prepare_process(config.run.threads)
    asked = not (config.demonstrates and config.data.missing())
    rows, eval_rows = (
        (load_rows(config.data, base), load_eval_rows(config.data, base)) if asked else (Rows([], [], str),) * 2
    )
    unread = not config.sft.present or (resumed and not config.demonstrates)  # of a run whose warm start has them
    shown = None if unread else config.sft.load(config.data, base)
    measured = config.demonstrates and shown is not None and len(shown.held_out)
    if config.eval.every and not len(eval_rows) and not measured:
        raise ConfigError(f"eval.every: {type(config.data).__name__} holds no rows out; set eval.every=0")
    optional = not config.rewards and not reads_rewards(config.advantage)
    rewards = RewardSet(()) if optional else RewardSet.build(config.fitted_rewards, base=base)
    host = host_of(config, base)
    with if_it_fails(rewards.close, *([] if host is None else [host.close])):
        check_columns(rewards, config.data, rows, eval_rows)
        if not resumed:
            rewards.announcements += try_rewards(rewards, config.data, rows)
        if host is not None and len(rows) and not resumed:
            first_episode(config, host, rows, *read_tokenizer(config, given.model))
            if shown is not None and shows_tools(host) and TOOLS not in shown.train.items[0]:
                rewards.announcements += (
                    "sft: the environment's tools stand in the prompts of rollouts, and not in those of the "
                    f"demonstrations: give these rows a column {TOOLS!r} with the tools' JSON schemas",
                )
        if given.model is None:
            model, lora = (config.model, config.lora) if start is None else begun_at(config, start)
            loaded = model.build(masters=True, lora=lora, seed=config.run.seed)
            config = config.model_copy(update={"model": config.model.on_this_machine()})
        else:
            loaded = adapted(given.model, config.lora, config.run.seed)
        run = _build_run(config, loaded, given, rewards, rows, eval_rows, shown, host)
        _add_reward_model(run, base)
        return run


def _build_run(
    config: RunConfig,
    loaded: LoadedModel,
    given: Overrides,
    rewards: RewardSet,
    rows: Rows,
    eval_rows: Rows,
    shown: DemonstrationRows | None,
    host: Host | None,
) -> Run:
    config.reference.check(loaded.model, None if given.reference is None else given.reference.model, loaded.dtype)
    check_token_ids("rollout.eos_ids", config.rollout.eos_ids, loaded.model)
    taught = teacher_of(config.advantage)
    asked, none = len(rows) > 0, Prompts(rows, config.data, loaded.tokenizer)  # a warm start needs no prompts
    prompts = opened(rows, config, loaded, None if taught is None else taught.template) if asked else none
    teacher = load_teacher(config, loaded)
    demonstrations, held_out = (None, None) if shown is None else demonstrations_of(shown, config, loaded)
    trained = demonstrations if config.demonstrates else None
    config = config.over(len(prompts if trained is None else trained))
    eval_prompts = opened(eval_rows, config, loaded) if asked else none
    if config.eval.every and asked and not len(eval_prompts):
        left = f"all {len(eval_rows)} held-out prompts are too long and were dropped"
        raise ConfigError(f"eval.every: {left}; raise data.max_prompt_tokens, or set eval.every=0")
    for network in (loaded, given.reference, teacher):
        if network is not None:
            longest = 0 if trained is None else max(trained.lengths())
            fix_reach(network.model, config, prompts, eval_prompts, demonstration=longest)
    eval_prompts = eval_prompts.first(config.eval.limit)
    learner = build_learner(config, loaded, given.reference, teacher)
    rewards.locate = step_locator(loaded.tokenizer)
    own, make = build_engine(config, loaded), engine_maker(config, loaded)
    sampling = config.rollout, loaded.tokenizer, loaded.eos_ids, config.run.seed
    engine = config.cluster.rollout_engine(own, make, *sampling, partial(training_bytes, config))
    engine = with_environment(config, engine, loaded, rewards, host)
    trainer = Trainer(
        trainer_config(config, describe_environment(module_device(loaded.model.module).type)),
        groups_of(config, engine, rewards, prompts, trained),
        learner,
        credit_of(config),
        ReferenceSchedule(config.reference, learner),
        TrainerState(),
    )
    run = Run(config, None, loaded, learner, engine, rewards, prompts, eval_prompts, trainer, given, teacher)
    run.demonstrations, run.held_out = trained, None if trained is None else held_out
    if config.eval.every:
        trainer.evaluator = run.measured
    return run


def _add_reward_model(run: Run, base: Path | None) -> None:
    """Add the run's own reward model, if it has one, to its rewards, and with `[iterative]` its training."""
    settings = run.config.own_reward_model
    if settings is None:
        return
    classifier = settings.load(masters=run.config.iterative.steps > 0)
    run.rewards.score_with(classifier)
    if run.config.iterative.steps:
        sources = LabellingInputs(run.engine, run.rewards, run.learner, run.loaded)
        run.iterations = iterations(run.config, base, sources, settings.build(classifier))
        run.trainer.outer = run.iterations
