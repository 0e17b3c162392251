"""The learner: owns weights and optimizer, turns a minibatch into one update. No algorithm ever edits its heart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from oncurve.batching import micro_batches
from oncurve.durable import LazyTensors
from oncurve.errors import CheckpointError, ConfigError
from oncurve.learner.budget import Budget
from oncurve.learner.live import live_rows, observe_dead_rows, still_without_advantage
from oncurve.learner.optim import MasterAdamW, MasterKind, MomentKind, Schedule, scheduled_rate
from oncurve.learner.protocol import UpdateResult
from oncurve.learner.reference import Reference, scored_logprobs
from oncurve.learner.sparse import sparse_embeddings
from oncurve.learner.values import ValueReader
from oncurve.losses import Objective, Regularizer, ValueLoss
from oncurve.metrics import Metrics
from oncurve.models import CausalModel, token_streams
from oncurve.models.causal import module_device
from oncurve.models.recompute import recompute_layers
from oncurve.spec import Component
from oncurve.types import TokenLoss, TrainBatch

__all__ = ["Accumulated", "LearnerConfig", "LocalLearner"]

OBSERVED = frozenset({"entropy"})
"""What the log has of every update, without a gradient unless the loss needs one."""

Decay = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Accumulated:
    """A gradient that lies in the parameters' `.grad`, the loss `()` it is of, and the statistics of its batch."""

    loss: Tensor
    metrics: Metrics


class LearnerConfig(Component):
    """Settings of the optimizer and of how a batch is worked through.

    learning_rate           peak of the schedule
    betas, epsilon, weight_decay   of AdamW
    masters                 of bfloat16 weights: "float32" beside them, 4 more bytes a parameter; "split": the weight is
                            the master's high half, an int16 its low one, 2 more bytes, and the same updates
    moments                 AdamW's two averages: "float32", 8 bytes a parameter, or "bfloat16", 4, rounded up or down
                            by chance, so that they are right on average
    max_grad_norm           the gradient's norm is scaled down to this; 0: no clipping
    schedule                after the warm-up: "constant", or "linear" or "cosine" down to 0 at the last update
    warmup_steps            updates over which the rate rises to its peak
    passes, minibatches     updates per rollout: `passes` times over the batch, in `minibatches` pieces of whole groups
    tokens_per_micro_batch  tokens (each prompt once per group) of one forward and backward pass; halved for the rest of
                            the run whenever a GPU runs out of memory
    gradient_checkpointing  keep only each layer's input for the backward pass and run the layer again there: less
                            memory for activations, a third more work
    old_logprobs            the old policy's log-probs where the ratio to it can leave 1 (several updates per rollout,
                            or an engine that is not exact): "recompute" them with the learner before the first
                            update, or take what the sampler recorded ("rollout"), which is all there is of
                            completions by older weights
    """

    learning_rate: float = Field(default=1e-6, ge=0)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    masters: MasterKind = "float32"
    moments: MomentKind = "float32"
    max_grad_norm: float = Field(default=1.0, ge=0)
    schedule: Schedule = "constant"
    warmup_steps: int = Field(default=0, ge=0, le=10**9)
    passes: int = Field(default=1, ge=1, le=10**4)
    minibatches: int = Field(default=1, ge=1)
    tokens_per_micro_batch: int = Field(default=16384, ge=1, le=10**9)
    gradient_checkpointing: bool = False
    old_logprobs: Literal["recompute", "rollout"] = "recompute"

    def build(
        self,
        model: CausalModel,
        objective: Objective,
        regularizer: Regularizer,
        *,
        temperature: float = 1.0,
        total_updates: int = 0,
        reference: CausalModel | None = None,
        dtype: torch.dtype | None = None,
    ) -> LocalLearner:
        """A learner in this process; see `LocalLearner`."""
        return LocalLearner(
            self,
            model,
            objective,
            regularizer,
            temperature=temperature,
            total_updates=total_updates,
            reference=reference,
            dtype=dtype,
        )


class LocalLearner:
    """A learner in this process: the sampler reads the very module that is trained, so there is nothing to transfer.

    Two runs of the same updates on the same machine give the same bits, and so does a learner that `load_state` made.
    Entropy is always measured (and logged) at the sampled distribution; it enters the gradient only through a bonus.
    """

    def __init__(
        self,
        config: LearnerConfig,
        model: CausalModel,
        objective: Objective,
        regularizer: Regularizer,
        *,
        temperature: float = 1.0,
        total_updates: int = 0,
        reference: CausalModel | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take charge of `model`.

        Args:
            temperature: what the sampler divides logits by; the log-probs trained on are those of that distribution.
            total_updates: optimizer updates of the whole run; the decaying schedules end there.
            reference: π_ref; by default a frozen copy of `model` as it is now, where the KL term needs one.
            dtype: what the model computes in; None: the dtype its parameters have. In half precision the masters are
                made of the parameters as they were given, before they are rounded.

        Raises:
            ConfigError: a temperature that is not positive; a decaying schedule without `total_updates`; gradient
                checkpointing of a module without layers of transformers; an objective that needs the exact KL where
                there is no reference.
            ModelError: nothing to train, or a model that cannot be copied for the reference.
        """
        _check(config, model, temperature, total_updates)
        self.config = config
        self.objective = objective
        self.regularizer = regularizer
        self.optimizer = MasterAdamW(
            model.module,
            dtype,
            config.betas,
            config.epsilon,
            config.weight_decay,
            masters=config.masters,
            moments=config.moments,
        )
        self.reference: Reference | None = None
        if reference is not None or regularizer.kl.needs_reference:
            self.reference = Reference.beside(model, reference, dtype)
        self._model = model
        self._temperature = temperature
        self._total_updates = total_updates
        self._needs = objective.needs | regularizer.needs
        if "full_kl" in self._needs and self.reference is None:
            raise ConfigError(
                f"objective.kind: {type(objective).__name__} needs full_kl, the distance from a reference, and "
                "there is none; set kl.coef above 0, or give a reference model"
            )
        self._by_advantage = still_without_advantage(objective, regularizer)
        self._attempts = 0
        self._values: ValueReader | None = None
        self.budget = Budget(config.tokens_per_micro_batch)

    @property
    def version(self) -> int:
        """How often the weights have changed: the optimizer's steps."""
        return self.optimizer.steps

    def policy(self) -> CausalModel:
        """The model itself: sampler and learner share it."""
        return self._model

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """`accumulate` and `apply`: one optimizer update on a batch with `advantages` and `token_weights`."""
        return self.apply(self.accumulate(minibatch))

    def also_train(self, reader: ValueReader, loss: ValueLoss) -> None:
        """Read values off this model's hidden states, and add their loss to every token's from now on."""
        self._values, self.regularizer = reader, replace(self.regularizer, value=loss)
        self._by_advantage = False  # a value may be wrong where the advantage is 0

    def begin_after(self, updates: int) -> None:
        """The first `updates` of the run are not this policy's: its schedule runs over the others."""
        self._total_updates = max(0, self._total_updates - updates)

    def pass_over(self) -> None:
        """An update of the run in which this policy is left as it is: its schedule goes on."""
        self._attempts += 1

    def accumulate(self, minibatch: TrainBatch) -> Accumulated:
        """The gradient of Σ weight_it · loss_it over the batch, left in the parameters' `.grad`; nothing is stepped.

        It does not depend on `tokens_per_micro_batch` nor on the order of rows. Rows that cannot move anything are not
        computed (`live_rows`); statistics that need their forward pass are means over the others. Where a device runs
        out of memory, all of it is done again in smaller micro-batches, and so are later ones.

        Raises TrainingError where one row at a time is too much, ValueError where the batch has no `advantages` or
        `token_weights`, or a stream in `needs` is missing.
        """
        live = live_rows(minibatch, self._by_advantage)
        halved = self.budget.halved
        accumulated = self.budget.fit(lambda tokens: self._accumulate(live, tokens), minibatch)
        metrics = accumulated.metrics
        observe_dead_rows(metrics, minibatch, live)
        if self.budget.halved > halved:
            metrics.add("out_of_memory", float(self.budget.halved - halved))
        return accumulated

    def _accumulate(self, live: TrainBatch | None, tokens: int) -> Accumulated:
        """The gradient, loss and statistics of the live rows, in micro-batches of `tokens`."""
        device = module_device(self._model.module)
        metrics = Metrics()
        loss = torch.zeros((), dtype=torch.float64, device=device)
        self.optimizer.zero_grad()
        if self._values is not None:
            self._values.head.zero_grad()  # of an attempt that ran out of memory
        with sparse_embeddings(self._model.module) as settle:
            for micro in micro_batches(live, tokens) if live is not None else ():
                loss += self._backward(micro.to(device), metrics)
                settle()
        return Accumulated(loss, metrics)

    def _backward(self, micro: TrainBatch, metrics: Metrics) -> Tensor:
        """Adds the micro-batch's gradient to `.grad` and its statistics to `metrics`; returns its loss `()`."""
        head = self.reference.head() if self.reference is not None else None
        read = None if self._values is None else partial(self._values.read, micro=micro)
        streams = token_streams(self._model, micro, self._needs, self._temperature, head, observe=OBSERVED, read=read)
        token: TokenLoss = self.objective(streams, micro) + self.regularizer(streams, micro)
        loss = token.weighted(micro)
        loss.backward()  # type: ignore[no-untyped-call]
        for key, values in token.stats.items():
            metrics.add(key, values, micro.loss_mask)
        _observe_mismatch(metrics, streams.logprobs, micro)
        return loss.detach()

    def forget(self, accumulated: Accumulated) -> UpdateResult:
        """The model's part of the gradient is not used; "skipped" where it, or the loss, is not finite."""
        norm, loss = self.optimizer.gradient_norm(), float(accumulated.loss)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return self._skip(loss, norm)
        self.optimizer.zero_grad()
        accumulated.metrics.add("loss", loss)
        return UpdateResult(accumulated.metrics)

    def apply(self, accumulated: Accumulated) -> UpdateResult:
        """One AdamW step with the accumulated gradient, norm clipped, at the schedule's rate; `.grad` is empty then.

        A batch without a live row has gradient 0, and the step is taken all the same: what is left in the moments moves
        the weights, exactly as if the rows had been computed. Where loss or gradient is not finite nothing changes but
        the schedule's position, and the metrics are only that.
        """
        rate = scheduled_rate(
            self.config.learning_rate,
            self._attempts,
            self._total_updates,
            self.config.warmup_steps,
            self.config.schedule,
        )
        norm, loss = self.optimizer.gradient_norm(), float(accumulated.loss)
        self._attempts += 1
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return self._skip(loss, norm)
        self.optimizer.step(rate, norm, self.config.max_grad_norm)
        metrics = accumulated.metrics
        for key, value in {"loss": loss, "grad_norm": norm, "learning_rate": rate, "updates": 1.0}.items():
            metrics.add(key, value)
        if self.reference is not None and self.regularizer.kl.where == "loss":
            metrics.add("kl_coef", self.regularizer.kl.coef)
        return UpdateResult(metrics)

    def _skip(self, loss: float, norm: float) -> UpdateResult:
        """Leaves everything as it was and says what was wrong."""
        broken = [name for name, gradient in self.optimizer.gradients().items() if not bool(gradient.isfinite().all())]
        self.optimizer.zero_grad()
        where = f", first in {broken[0]} ({len(broken)} of {len(self.optimizer.trained)} parameters)" if broken else ""
        metrics = Metrics()
        metrics.add("updates_skipped", 1.0)
        return UpdateResult(metrics, skipped=True, reason=f"loss {loss:.4g}, gradient norm {float(norm):.4g}{where}")

    def old_logprobs(self, batch: TrainBatch) -> Tensor:
        """Log-probs `(B, T)` of the batch under the weights as they are now, without a gradient."""
        return self.budget.fit(lambda tokens: scored_logprobs(self._model, batch, self._temperature, tokens), batch)

    def reference_streams(self, batch: TrainBatch) -> TrainBatch:
        """`batch` with `ref_logprobs (B, T)`, and `ref_hidden` for the full KL; unchanged without a reference."""
        reference, full = self.reference, "full_kl" in self._needs
        if reference is None:
            return batch
        return self.budget.fit(lambda tokens: reference.score(batch, self._temperature, tokens, full), batch)

    def masters(self) -> Mapping[str, Tensor]:
        """Every parameter by name in its full precision, tied ones once: what an export is made of.

        Views, or, where masters are split, made one by one when they are asked for.
        """
        masters = self.optimizer.masters
        return LazyTensors(masters, lambda name: masters[name].detach())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Masters and moments by name, and the counts. Tensors are views: write them before the next update."""
        counts = {"steps": self.optimizer.steps, "attempts": self._attempts}
        others = {"tokens_per_micro_batch": self.budget.tokens, "reference_version": self.reference_version}
        return self.optimizer.state(), counts | others

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`, bit for bit. Raises CheckpointError, with nothing changed, for another model's."""
        if not {"steps", "attempts"} <= meta.keys():
            raise CheckpointError("the learner's record has no `steps` and `attempts`: another version wrote it")
        self.optimizer.load_state(tensors, int(meta["steps"]))
        self._attempts = int(meta["attempts"])
        if "tokens_per_micro_batch" in meta:  # what did not fit before the run was stopped does not fit now
            self.budget.tokens = min(self.budget.tokens, int(meta["tokens_per_micro_batch"]))
        if self.reference is not None:
            self.reference.version = int(meta.get("reference_version", 0))  # once it could not move

    @property
    def changes(self) -> int:
        """See `Learner.changes`: attempts, steps, and moves of the reference."""
        return self._attempts + self.optimizer.steps + self.reference_version

    @property
    def reference_version(self) -> int:
        """How often the reference has moved; 0: it is as it was given, or there is none."""
        return self.reference.version if self.reference is not None else 0

    def move_reference(self, mixup: float) -> None:
        """See `Reference.move`; nothing happens where there is no reference."""
        if self.reference is not None:
            self.reference.move(self._model, self.masters(), mixup)

    def reference_state(self) -> dict[str, Tensor] | None:
        """The reference's tensors, which `move_reference` alone changes; None where there is no reference."""
        return self.reference.state() if self.reference is not None else None

    def load_reference(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `reference_state`. Raises CheckpointError where there is no reference, or it is another's."""
        if self.reference is None:
            raise CheckpointError("the checkpoint has a reference, but this run's settings need none (kl.coef = 0)")
        self.reference.load_state(tensors)


def _check(config: LearnerConfig, model: CausalModel, temperature: float, total_updates: int) -> None:
    """Raises ConfigError for settings that the model or the length of the run do not allow."""
    if not temperature > 0:
        raise ConfigError(f"rollout.temperature must be > 0 to train (greedy text has no density), got {temperature}")
    if config.schedule != "constant" and total_updates < 1:
        raise ConfigError(f"learner.schedule = {config.schedule!r} needs to know how many updates the run makes")
    if config.gradient_checkpointing and not recompute_layers(model.module):
        raise ConfigError(
            f"learner.gradient_checkpointing: {type(model.module).__name__} has no layers of transformers to run "
            "again; leave it false"
        )


def _observe_mismatch(metrics: Metrics, logprobs: Tensor, batch: TrainBatch) -> None:
    """How far the learner is from what the sampler recorded: of a step's updates the first one's counts (`Metric`)."""
    if batch.rollout_logprobs is not None:
        gap = (logprobs.detach() - batch.rollout_logprobs).abs()
        metrics.add("mismatch", gap, batch.loss_mask)
        metrics.add("mismatch_max", gap, batch.loss_mask)
