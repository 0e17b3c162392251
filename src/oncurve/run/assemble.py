"""The composition root: the one place that knows every room, and puts a run together from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from oncurve.data import Prompts, PromptStream, Rows, load_eval_rows, load_rows, open_prompts
from oncurve.errors import ConfigError
from oncurve.evaluate import Evaluation, evaluate, part_is_1
from oncurve.learner import ActorCritic, LocalLearner, SharedActorCritic
from oncurve.learner.reward_model import NoRewardModel
from oncurve.losses import Regularizer
from oncurve.models import CausalModel, LoadedModel, save
from oncurve.models.causal import module_device
from oncurve.models.rotation import reach_of, set_reach
from oncurve.rewards import RewardSet
from oncurve.rewards.rewardset import verifier_of
from oncurve.rollout import InProcessEngine, Policy, check_token_ids, is_exact
from oncurve.run.columns import check_columns
from oncurve.run.config import RunConfig
from oncurve.run.directory import RunDirectory, describe_environment, environment_changes
from oncurve.run.iterations import JudgedBy, Sources, iterations, step_locator
from oncurve.run.plan import Facts
from oncurve.run.process import prepare_process
from oncurve.trainer import (
    Checkpoints,
    KLControl,
    Recorder,
    ReferenceSchedule,
    StepResult,
    Trainer,
    TrainerConfig,
    TrainerState,
)
from oncurve.trainer.iterative import Iterations

__all__ = ["Given", "Run", "assemble", "fix_reach", "judge", "room_for_prompts", "trainer_config"]


@dataclass(frozen=True)
class Given:
    """Objects handed over from Python in place of what the settings would load; None: load it."""

    model: LoadedModel | None = None
    reference: LoadedModel | None = None


@dataclass
class Run:
    """A run put together and ready: `train`, `evaluate`, `save_model`. A context manager that ends its workers."""

    config: RunConfig
    directory: RunDirectory | None
    loaded: LoadedModel
    learner: LocalLearner | ActorCritic | SharedActorCritic
    engine: InProcessEngine
    rewards: RewardSet
    prompts: Prompts
    eval_prompts: Prompts
    trainer: Trainer
    given: Given = Given()
    iterations: Iterations | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the reward workers, close the logs, let go of the directory. Twice is allowed."""
        self.rewards.close()
        self.let_go()

    def let_go(self) -> None:
        """Close the logs and let go of the directory, whose `path` is still known: another run may go on with it."""
        with ExitStack() as closing:  # all of them, whatever one raises
            if self.directory is not None:
                closing.callback(self.directory.close)
            if self.trainer.recorder is not None:
                closing.callback(self.trainer.recorder.close)
            if self.iterations is not None:
                closing.callback(self.iterations.replay.close)

    def train(self, *observers: Callable[[StepResult], None]) -> str | None:
        """Run the steps that are left; the name of the signal that ended it early, or None."""
        self.trainer.observers = observers
        return self.trainer.train()

    def facts(self) -> Facts:
        """What the plan can say once everything is loaded."""
        frozen, bytes_each = self.learner.reference_state(), self.loaded.dtype.itemsize
        return Facts(
            rows=len(self.prompts),
            eval_rows=len(self.eval_prompts),
            dropped=self.prompts.dropped,
            parameters=sum(parameter.numel() for parameter in self.loaded.model.module.parameters()),
            reference_given=self.given.reference is not None,
            reference_bytes=None if frozen is None else bytes_each * sum(tensor.numel() for tensor in frozen.values()),
            kept=self.directory is not None,
            exact_engine=is_exact(self.engine),
            device=str(module_device(self.loaded.model.module)),
            path_reason=self.loaded.model.path_reason,
            precision=f"{str(self.loaded.dtype).removeprefix('torch.')} ({self.loaded.dtype_reason})",
        )

    def evaluate(self, n: int = 0) -> Evaluation:
        """Greedy, and n samples a prompt where n > 0, with the weights as they are.

        On the held-out prompts; where there are none, on those of the training data, which `held_out` says.
        """
        self.engine.follow(Policy(self.learner.policy(), self.learner.version))
        held_out = len(self.eval_prompts) > 0
        prompts = self.eval_prompts if held_out else self.prompts.first(self.config.eval.limit)
        return replace(judge(self.engine, self.rewards, prompts, self.config, n), held_out=held_out)

    def save_model(self, path: Path) -> None:
        """The policy in Hugging Face form, from the full-precision masters."""
        save(self.loaded.model.module, self.loaded.tokenizer, path, self.learner.masters())

    def save_reward_model(self, path: Path) -> bool:
        """The reward model as the iterations have left it, in Hugging Face form; whether there is one."""
        if self.iterations is not None:
            self.iterations.learner.save(path)
        return self.iterations is not None

    def open_directory(self, directory: RunDirectory, identity: Mapping[str, Any] | None = None) -> None:
        """Write into `directory` from now on: checkpoints, which name the run they are of, and what steps leave."""
        self.directory = directory
        if self.iterations is not None:
            self.iterations.replay.folder = directory.path
        self.trainer.checkpoints = Checkpoints(directory.checkpoints, self.config.checkpoint.keep, identity)

    def begin(self) -> None:
        """Start a new run in the open directory."""
        assert self.directory is not None
        self.trainer.recorder = Recorder(self.directory.path, self.trainer.state)

    def restore(self) -> list[str]:
        """Take up the newest checkpoint that verifies; what there is to say about it, one line each."""
        assert self.trainer.checkpoints is not None
        assert self.directory is not None
        found = self.trainer.checkpoints.restore(self.learner, self.trainer.outer)
        if found is None:
            lines = ["there is no checkpoint; the run begins again at step 1"]
        else:
            self.trainer.state, before, lines = found
            changes = environment_changes(before, self.trainer.environment or {})
            if changes:
                lines.append("not exact: the run goes on, but not to the same bits, because " + "; ".join(changes))
        self.trainer.recorder = Recorder(self.directory.path, self.trainer.state)
        return [*lines, *self.trainer.recorder.notes]


def assemble(config: RunConfig, base: Path | None = None, given: Given | None = None) -> Run:
    """A run from its settings, cheap checks first: data, rewards, model, then the parts around them.

    `base` is where relative paths in the settings start (the working directory if None); `given` stands in for what
    `[model]` would load. Nothing is written: see `Run.open_directory`. Raises UserError for what the user can mend.
    """
    given = given or Given()
    prepare_process(config.run.threads)
    rows, eval_rows = load_rows(config.data, base), load_eval_rows(config.data, base)
    if config.eval.every and not len(eval_rows):
        raise ConfigError(
            f"eval.every: the data source ({type(config.data).__name__}) holds no rows out to evaluate on; set "
            "eval.every=0, or have the source hold some out"
        )
    rewards = RewardSet.build(config.rewards, base=base)
    try:
        check_columns(rewards, config.data, rows, eval_rows)
        loaded = given.model or config.model.build(masters=True)
        if given.model is None:
            config = config.model_copy(update={"model": config.model.on_this_machine()})
        run = _put_together(config, loaded, given, rewards, rows, eval_rows)
        _put_reward_model(run, base)
        return run
    except BaseException:
        rewards.close()
        raise


def _put_together(
    config: RunConfig,
    loaded: LoadedModel,
    given: Given,
    rewards: RewardSet,
    rows: Rows,
    eval_rows: Rows,
) -> Run:
    config.reference.check(loaded.model, None if given.reference is None else given.reference.model, loaded.dtype)
    check_token_ids("rollout.eos_ids", config.rollout.eos_ids, loaded.model)
    fits = room_for_prompts(loaded, config)
    prompts = open_prompts(rows, config.data, loaded.tokenizer, fits, loaded.vocabulary)
    eval_prompts = open_prompts(eval_rows, config.data, loaded.tokenizer, fits, loaded.vocabulary)
    if config.eval.every and not len(eval_prompts):
        raise ConfigError(
            f"eval.every: all {len(eval_rows)} held-out prompts are too long and were dropped; raise "
            "data.max_prompt_tokens, or set eval.every=0"
        )
    for network in (loaded, given.reference):
        if network is not None:
            fix_reach(network.model, config, prompts, eval_prompts)
    eval_prompts = eval_prompts.first(config.eval.limit)
    actor = config.learner.build(
        loaded.model,
        config.objective,
        Regularizer(config.kl, config.entropy.coef),
        temperature=config.rollout.temperature,
        total_updates=config.run.steps * config.updates_per_step,
        reference=given.reference.model if given.reference is not None else None,
        dtype=loaded.dtype,
    )
    learner = config.critic.build(actor)
    rewards.locate = step_locator(loaded.tokenizer)
    engine = InProcessEngine(config.rollout, loaded.tokenizer, loaded.eos_ids, config.run.seed)
    trainer = Trainer(
        trainer_config(config),
        engine,
        learner,
        rewards,
        PromptStream(prompts, config.run.seed, config.data.shuffle),
        config.advantage,
        config.loss_weights,
        KLControl(config.kl),
        ReferenceSchedule(config.reference.every, config.reference.mixup, learner),
        TrainerState(),
        environment=describe_environment(module_device(loaded.model.module).type),
    )
    run = Run(config, None, loaded, learner, engine, rewards, prompts, eval_prompts, trainer, given)
    if config.eval.every:
        trainer.evaluator = lambda step: run.evaluate(config.eval.n).to_metrics()
    return run


def _put_reward_model(run: Run, base: Path | None) -> None:
    """The run's own reward model, where it has one: as its judge, and with `[iterative]` as what is trained between."""
    settings = run.config.reward_model
    if isinstance(settings, NoRewardModel):
        return
    classifier = settings.load(masters=run.config.iterative.steps > 0)
    run.rewards.judge_with(classifier)
    if run.config.iterative.steps:
        sources = Sources(run.engine, run.rewards, run.learner, run.loaded)
        run.iterations = iterations(run.config, base, sources, settings.build(classifier))
        run.trainer.outer = run.iterations


def room_for_prompts(loaded: LoadedModel, config: RunConfig) -> int | None:
    """The tokens a prompt may have, so that its completion fits the model's context too; None: not known.

    Raises ConfigError where completions alone take it all.
    """
    row, longest = loaded.model.longest_row, config.rollout.max_new_tokens
    if row is not None and longest >= row:
        raise ConfigError(
            f"rollout.max_new_tokens: {longest} leaves no room for a prompt: the model takes rows of at most {row} "
            "tokens, prompt and completion together; lower it"
        )
    return None if row is None else row - longest


def fix_reach(model: CausalModel, config: RunConfig, *prompts: Prompts) -> None:
    """Tell a model whose rotation depends on the length of a row how long the rows of this run may be.

    That is the longest prompt (`data.max_prompt_tokens`, where it is set) and `rollout.max_new_tokens`, and never more
    than the model takes. Other models stay as they are, and no prompt is read for them.
    """
    if reach_of(model.module) is None:
        return
    longest = config.data.max_prompt_tokens
    if longest is None:
        longest = max((len(some[index].ids) for some in prompts for index in range(len(some))), default=0)
    most = longest + config.rollout.max_new_tokens
    set_reach(model.module, min(most, model.longest_row or most))


def trainer_config(config: RunConfig) -> TrainerConfig:
    """The loop's own numbers, from the sections they stand in."""
    return TrainerConfig(
        steps=config.run.steps,
        prompts_per_step=config.data.prompts_per_step,
        seed=config.run.seed,
        passes=config.learner.passes,
        minibatches=config.learner.minibatches,
        old_logprobs=config.learner.old_logprobs,
        mask_truncated=config.filter.mask_truncated,
        checkpoint_every=config.checkpoint.every,
        eval_every=config.eval.every,
        grace_seconds=config.run.grace_seconds,
    )


def judge(engine: InProcessEngine, rewards: RewardSet, prompts: Prompts, config: RunConfig, n: int) -> Evaluation:
    """Greedy, and n samples a prompt where n > 0, on all of `prompts`, with what the engine follows.

    Where there is a judge (`eval.judge`) its word counts: what a reward model says of its own policy is no evidence.
    What is correct is told by one reward alone (`verifier_of`), whatever its weight; without one it is not reported.
    """
    verifier = verifier_of(config.rewards, config.eval.judge)
    return evaluate(
        engine,
        rewards if config.eval.judge is None else JudgedBy(rewards, config.eval.judge),
        [prompts[index] for index in range(len(prompts))],
        greedy=config.rollout.model_copy(update={"group_size": 1, "temperature": 0.0}),
        sampled=config.rollout.model_copy(update={"group_size": n}) if n else None,
        correct=None if verifier is None else part_is_1(verifier),
        verifier=verifier,
        seed=config.run.seed,
    )
