"""The smallest API: any `nn.Module` with `forward(input_ids) -> logits`, token tensors in, metrics out.

The arguments, their order and the metrics are those of rlox's `GRPO`; the algorithm is oncurve's `grpo` preset
(clipped, k3, masked beyond the end of a completion) unless `preset = "rlox"` asks for rlox's own (reinforce, k1), which
`oncurve.compat.rlox.GRPO` does. In either, the prompt's tokens are never trained.

An argument is a setting by another name (`SETTING_OF`), so that the same value in `settings` is the same run.
"""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec

import torch
from torch import Tensor, nn

from oncurve.advantages import needs_of
from oncurve.base.errors import ConfigError, DataError, RewardError, refuse
from oncurve.components import Component
from oncurve.config import (
    RUN,
    Layer,
    RunConfig,
    check_argument_names,
    check_config,
    inert_rules,
    load,
    read_layers,
    tables_of,
)
from oncurve.data import Counts
from oncurve.learner import check_learner
from oncurve.machine.threads import prepare_process
from oncurve.models import adapted, wrap
from oncurve.models.layers import set_reach
from oncurve.models.loading import loaded_from, vocabulary_of
from oncurve.rewards import LARGEST_REWARD, DeferredScoring
from oncurve.rollout import check_token_ids, sample
from oncurve.run import credit_of, trainer_config
from oncurve.trainer import Groups, OuterLoop, ReferenceSchedule, StepResult, Trainer, TrainerState
from oncurve.types import Group, Prompt, Score

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

SETTING_OF: dict[str, str] = _TABLES["setting_of"]
"""The setting of each argument."""

OTHER_NAMES = {name: argument for argument, names in _TABLES["other_names"].items() for name in names}

WITHOUT_MEANING: dict[str, str] = _TABLES["without_meaning"]
"""Settings and sections that a run by `GRPO` does not use, and why; giving one is an error."""


def settings_of(
    values: Mapping[str, Any], said: frozenset[str], preset: str, settings: Mapping[str, Any] | None
) -> RunConfig:
    """Return the settings of a run: given values, over the preset, over the defaults of other arguments."""
    tables = tables_of({SETTING_OF[name]: value for name, value in values.items() if name in said}, settings)
    chosen_here = _given_keys(tables)
    _refuse_unused(chosen_here)
    layers = [(layer.name, _keys(layer)) for layer in read_layers(preset)[0]]
    for name, keys in layers:
        if not name.startswith("preset "):  # a recipe of the user's
            _refuse_unused(keys)
    # The preset "grpo" is the class defaults, written out: it chooses nothing.
    chosen = {key for name, keys in layers if name != "preset grpo" for key in keys}
    for name in (name for name in values if name not in said and SETTING_OF[name] not in chosen):
        section, _, key = SETTING_OF[name].partition(".")
        table = tables.setdefault(section, {})
        if isinstance(table, dict):
            table.setdefault(key, values[name])
    config, _, _ = load(RUN, preset, settings=tables)
    if config.iterative.steps:
        raise ConfigError(
            f"preset {preset!r}: an iteration ends with the training of a reward model, and here reward_fn is the "
            "reward; use oncurve.train, or for the moving reference alone preset='grpo_paper' with "
            f"settings={{'reference': {{'every': {config.iterative.steps}}}}}"
        )
    if config.filter.dynamic_sampling:
        raise ConfigError(f"preset {preset!r}: {WITHOUT_MEANING['filter.dynamic_sampling']}; use oncurve.train")
    if "steps" in needs_of(config.advantage):
        raise ConfigError(
            'advantage.kind: "process" needs rewards of steps, and reward_fn gives one number for all of them; '
            "use oncurve.train with a reward that scores steps, or another preset"
        )
    prompts = max(config.data.prompts_per_step, config.learner.minibatches)  # train_step checks their number
    config = config.model_copy(update={"data": config.data.model_copy(update={"prompts_per_step": prompts})})
    check_config(config)
    lost = [(key, rule.reason) for rule in inert_rules(config) for key in rule.keys if key in chosen_here]
    refuse(f"{key}: set to no effect: {reason}" for key, reason in lost)  # there is no plan to print it
    return config


def _keys(layer: Layer) -> list[str]:
    return [".".join(map(str, path)) for path, _ in layer.assignments]


def _given_keys(tables: Mapping[str, Any]) -> list[str]:
    """Return the keys of tables, as `"section.key"`; the section alone where it is no table."""
    keys = list[str]()
    for section, table in tables.items():
        if isinstance(table, (Mapping, Component)):
            names = table.model_fields_set if isinstance(table, Component) else table
            keys += [f"{section}.{name}" for name in names]
        else:
            keys.append(section)
    return keys


def _refuse_unused(keys: Iterable[str]) -> None:
    """Raise ConfigError with a line for each of `keys` that a run by `GRPO` does not use."""
    reasons = {key: WITHOUT_MEANING.get(key.partition(".")[0]) or WITHOUT_MEANING.get(key) for key in keys}
    refuse(f"{key}: set to no effect: {reason}" for key, reason in reasons.items() if reason is not None)


P = ParamSpec("P")

TokenReward = Callable[[list[Tensor], Tensor], Sequence[float]]
"""`(completions, prompts) -> rewards`: n tensors `(|o|,)`, prompts `(n, P)` one a completion, n finite floats.

A completion is what the policy wrote, without the prompt. Prompts of different lengths are padded on the right with 0.
"""


def _explains_arguments(init: Callable[Concatenate[GRPO, P], None]) -> Callable[Concatenate[GRPO, P], None]:
    """Return `GRPO.__init__` with the names of the arguments given (`_said`); an unknown argument is an
    ArgumentError.
    """
    signature = inspect.signature(init)
    known = [name for name in signature.parameters if name != "self"]

    @wraps(init)
    def called(self: GRPO, /, *args: P.args, **kwargs: P.kwargs) -> None:
        check_argument_names("GRPO", kwargs, known, {key: name for name, key in SETTING_OF.items()}, OTHER_NAMES)
        self._said = frozenset(signature.bind_partial(self, *args, **kwargs).arguments)
        init(self, *args, **kwargs)

    return called


class GRPO:
    """GRPO on token ids, without tokenizer, files or configuration.

        trainer = GRPO(model=model, ref_model=ref_model, reward_fn=reward_fn, group_size=4, kl_coef=0.1,
                       learning_rate=1e-4, max_new_tokens=8)
        metrics = trainer.train(prompts=prompt_tensor, n_epochs=3)
        print(metrics["mean_reward"], metrics["kl"])

    Args:
        model: the policy; a transformers model takes the fast path, anything else the plain one.
        ref_model: the reference of the KL term; None: a frozen copy of `model` as it is now, where there is a KL term.
            With a `ref_model` the metric `kl` is measured with `kl_coef=0` too.
        reward_fn: a `TokenReward`. It runs in this process and cannot be stopped.
        group_size: completions of each prompt.
        kl_coef: β of the KL term; 0: there is none.
        callbacks: objects with the hooks of rlox's `Callback`, those that they have: `on_training_start()` and
            `on_training_end()` around `train`, `on_train_batch(loss=, mean_reward=, kl=)` after each update step,
            `on_step(reward=, step=, algo=)` after each epoch, which ends the training where it returns False (None,
            as a function without `return` gives it, does not).
        logger: an object with `on_train_step(step, metrics)`, as rlox's `LoggerCallback` has it.
        max_grad_norm: the gradient's norm is scaled down to this; 0: no clipping.
        eos_ids: token ids that end a completion; without any, every completion has `max_new_tokens` tokens.
        preset: the algorithm: "grpo" (the default here), "dr_grpo", "rlox", ... An argument that is left out has the
            preset's value, if it sets one ("grpo" sets none), and else the default here.
        settings: more settings as nested tables, such as `{"objective": {"clip_high": 0.28}}`. Every argument from
            `group_size` on is a setting too (`SETTING_OF`), with the same effect.

    Raises ConfigError for settings that cannot be, that contradict an argument, or that have no effect here.
    """

    preset: ClassVar[str] = "grpo"
    """The algorithm where no argument chooses one."""
    _said: frozenset[str]

    @_explains_arguments
    def __init__(
        self,
        model: nn.Module,
        ref_model: nn.Module | None = None,
        reward_fn: TokenReward | None = None,
        group_size: int = 4,
        learning_rate: float = 1e-4,
        kl_coef: float = 0.1,
        max_new_tokens: int = 8,
        callbacks: Sequence[Any] | None = None,
        logger: Any = None,
        *,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
        preset: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if reward_fn is None:
            raise RewardError("GRPO needs reward_fn: a function (completions, prompts) -> list of floats")
        values = {
            "group_size": group_size,
            "learning_rate": learning_rate,
            "kl_coef": kl_coef,
            "max_new_tokens": max_new_tokens,
            "max_grad_norm": max_grad_norm,
            "temperature": temperature,
            "eos_ids": tuple(eos_ids) if isinstance(eos_ids, Iterable) else eos_ids,
            "seed": seed,
        }
        self.config = settings_of(values, self._said, self.preset if preset is None else preset, settings)
        self.callbacks, self.logger = _hooked(callbacks), logger
        if logger is not None and not callable(getattr(logger, "on_train_step", None)):
            raise ConfigError(f"logger: expected an object with on_train_step(step, metrics), got {logger!r:.60}")
        prepare_process(None)
        self.reward_fn = reward_fn
        self.model = model
        self._longest = 0
        reference = None if ref_model is None else wrap(ref_model)  # before the policy's adapter: it may be the policy
        policy = adapted(loaded_from(model), self.config.lora, self.config.run.seed).model
        check_token_ids("rollout.eos_ids", self.config.rollout.eos_ids, policy)
        self._networks = [policy.module] + ([] if reference is None else [reference.module])
        self.config.reference.check(policy, reference)
        self.learner = self.config.learner.build(
            policy,
            self.config.policy_term,
            self.config.regularizer,
            critic=self.config.critic,
            temperature=self.config.rollout.temperature,
            reference=reference,
        )
        check_learner(self.learner)
        self.engine = self.config.engine.build(self.config.rollout, None, (), self.config.run.seed)
        self.outer: OuterLoop = ReferenceSchedule(self.config.reference, self.learner)
        self.state = TrainerState()

    def train(self, prompts: Tensor | Sequence[Tensor], n_epochs: int = 1) -> dict[str, float]:
        """Return `n_epochs` times one step over all prompts `(N, P)` (or N tensors of their own lengths).

        Returns the last step's metrics: `loss`, `mean_reward`, `kl`, and every declared metric under its own name.
        """
        metrics: dict[str, float] = {}
        self._call("on_training_start")
        for _ in range(n_epochs):
            metrics = self.train_step(prompts)
            about = {"reward": metrics["mean_reward"], "step": self.state.step, "algo": self}
            goes_on = [callback.on_step(**about) for callback in self.callbacks if hasattr(callback, "on_step")]
            if not all(answer is None or answer for answer in goes_on):
                break
        self._call("on_training_end")
        return metrics

    def train_step(self, prompts: Tensor | Sequence[Tensor]) -> dict[str, float]:
        """Train one step over all prompts: a group each, rewards, one update (as many as the settings say).

        `kl` is 0 where there is no reference. Raises ConfigError for fewer prompts than `learner.minibatches`.
        """
        trainer = self._trainer(self._rows(prompts))
        self.outer.before_step(self.state)
        result: StepResult = self.outer.after_step(trainer.step())
        self.state = trainer.state
        named = {"kl": 0.0} | {name: result.metrics[key] for name, key in RLOX_METRICS.items() if key in result.metrics}
        self._call("on_train_batch", **named)
        metrics = result.metrics | named
        if self.logger is not None:
            self.logger.on_train_step(self.state.step, metrics)
        return metrics

    def _call(self, hook: str, **about: float) -> None:
        for callback in self.callbacks:
            if hasattr(callback, hook):
                getattr(callback, hook)(**about)

    def evaluate(self, prompts: Tensor | Sequence[Tensor]) -> float:
        """Return the mean reward of one sampled completion per prompt."""
        self.engine.follow(self.learner.weights())
        one = self.config.rollout.model_copy(update={"group_size": 1})
        rows = self._rows(prompts)
        groups = sample(self.engine, rows, -1, 1, one)
        groups = TokenScorer(self.reward_fn).score(groups)
        return math.fsum(group.scores[0].reward for group in groups) / len(groups)

    def save(self, path: str | Path) -> None:
        """Write the policy's weights in full precision: `model.safetensors`, in the model's Hugging Face form."""
        self.learner.export(Path(path))

    def close(self) -> None:
        """Close the engine. Only an engine of your own may hold anything that outlives this object."""
        self.engine.close()

    def _rows(self, prompts: Tensor | Sequence[Tensor]) -> list[Prompt]:
        """Return the prompts. Rotations that depend on the length of rows reach to the longest."""
        rows = _as_prompts(prompts, vocabulary_of(self.model))
        self._longest = max(self._longest, *(len(row.ids) for row in rows))
        for network in self._networks:
            set_reach(network, self._longest + self.config.rollout.max_new_tokens)
        return rows

    def _trainer(self, prompts: list[Prompt]) -> Trainer:
        settings = trainer_config(self.config)
        if settings.minibatches > len(prompts):
            raise ConfigError(
                f"learner.minibatches: {settings.minibatches} minibatches are made of whole groups, and there are "
                f"{len(prompts)} prompts; lower it, or give more prompts"
            )
        size, least = self.config.rollout.group_size, self.config.advantage.min_valid_completions
        return Trainer(
            settings,
            Groups(self.engine, TokenScorer(self.reward_fn), AllPrompts(prompts), len(prompts), size, least),
            self.learner,
            credit_of(self.config),
            self.outer,
            self.state,
        )


RLOX_METRICS = {"loss": "policy/loss", "mean_reward": "reward/mean", "kl": "policy/kl"}
HOOKS = ("on_training_start", "on_step", "on_train_batch", "on_training_end")


def _hooked(callbacks: Any) -> tuple[Any, ...]:
    """Return the callbacks. Raises ConfigError for anything but a list of objects that each have one of `HOOKS`."""
    if callbacks is not None and not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks: expected a list of callbacks, got {callbacks!r:.60}; write callbacks=[it]")
    for callback in (given := tuple(callbacks or ())):
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            raise ConfigError(f"callbacks: {callback!r:.60} has none of the hooks {', '.join(HOOKS)}")
    return given


@dataclass(frozen=True)
class AllPrompts:
    """A source that gives all prompts at every step."""

    prompts: list[Prompt]

    def take(self, cursor: int, count: int, counts: Counts | None = None) -> tuple[list[Prompt], int]:
        """Return all of them, and the cursor after them."""
        return self.prompts, cursor + count

    def epoch(self, cursor: int) -> float:
        """Return every step is an epoch."""
        return cursor / len(self.prompts)


@dataclass(frozen=True)
class TokenScorer:
    """Scores groups with a reward on token tensors, in this process."""

    reward_fn: TokenReward

    def begin(self, step: int = 0) -> DeferredScoring:
        """Return a scoring that begins after all groups, because the reward would keep the sampler waiting."""
        return DeferredScoring(self.score)

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with their rewards. Raises RewardError: too few, too many, or one that is not finite."""
        completions = [torch.tensor(c.ids) for group in groups for c in group.completions]
        prompts = [torch.tensor(group.prompt.ids) for group in groups for _ in group.completions]
        padded = nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        rewards = [float(reward) for reward in self.reward_fn(completions, padded)]
        if len(rewards) != len(completions):
            raise RewardError(f"reward_fn returned {len(rewards)} rewards for {len(completions)} completions")
        if bad := [reward for reward in rewards if not abs(reward) <= LARGEST_REWARD]:
            raise RewardError(f"reward_fn returned {bad[0]}; a reward is a finite number, up to ±{LARGEST_REWARD:g}")
        each = iter(rewards)
        return [Group(g.prompt, g.completions, tuple(Score(next(each)) for _ in g.completions), g.draw) for g in groups]


def _as_prompts(prompts: Tensor | Sequence[Tensor], vocabulary: int | None) -> list[Prompt]:
    rows = [torch.as_tensor(row) for row in prompts]
    if not rows:
        raise DataError("there are no prompts: GRPO.train takes token ids (N, P), or N tensors of token ids")
    for index, row in enumerate(rows):
        if row.ndim != 1 or not len(row) or row.is_floating_point():
            raise DataError(f"prompt {index} is {tuple(row.shape)} {row.dtype}; a prompt is a row of token ids (P,)")
        for token in (int(row.min()), int(row.max())):
            if token < 0 or (vocabulary is not None and token >= vocabulary):
                most = "on" if vocabulary is None else f"to {vocabulary - 1}"
                raise DataError(f"prompt {index} holds the token id {token}; the model has ids from 0 {most}")
    return [Prompt(index, "", tuple(row.tolist())) for index, row in enumerate(rows)]
