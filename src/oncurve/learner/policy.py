"""The learner: owns weights and optimizer, turns a minibatch into one update. No algorithm ever edits its heart."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oncurve.base.errors import CheckpointError, ConfigError
from oncurve.batching import micro_batches
from oncurve.durable import LazyTensors
from oncurve.learner.budget import OBSERVED, Budget, scored_stats
from oncurve.learner.gradient_rows import (
    observe_mismatch,
    observe_rows_without_gradient,
    rows_with_gradient,
    zero_advantage_is_enough,
)
from oncurve.learner.optimizer.sparse import sparse_embeddings
from oncurve.learner.optimizer.update import MasterAdamW, Pace
from oncurve.learner.protocol import UpdateResult
from oncurve.learner.reference import Reference, Teacher
from oncurve.learner.settings import LearnerSettings
from oncurve.learner.values import ValueReader
from oncurve.losses import Objective, Regularizer, ValueLoss, objective_loss
from oncurve.metrics import Metrics
from oncurve.models import CausalModel, LocalWeights, module_device, save, token_stats
from oncurve.models.layers import recompute_layers
from oncurve.types import TrainBatch


@dataclass(frozen=True)
class Accumulated:
    """The loss `()` whose gradient is in the parameters' `.grad`, and the statistics of its batch."""

    loss: Tensor
    metrics: Metrics


class LocalLearner:
    """A learner in this process: the sampler reads the very module that is trained, so there is nothing to transfer.

    Two runs of the same updates on the same machine give the same bits, and so does a learner that was loaded.
    Entropy is always measured (and logged) at the sampled distribution; it enters the gradient only through a bonus.
    """

    def __init__(
        self,
        config: LearnerSettings,
        model: CausalModel,
        objective: Objective,
        regularizer: Regularizer,
        *,
        temperature: float = 1.0,
        total_updates: int = 0,
        reference: CausalModel | None = None,
        teacher: CausalModel | None = None,
        dtype: torch.dtype | None = None,
        tokenizer: Any = None,
    ) -> None:
        """Take charge of `model`.

        Args:
            temperature: what the sampler divides logits by; the log-probs trained on are those of that distribution.
            total_updates: optimizer updates of the whole run; the decaying schedules end there.
            reference: π_ref; by default a frozen copy of `model` as it is now, where the KL term needs one.
            teacher: what `score` takes `teacher_logprobs` from; `model` itself teaches with the weights of the moment.
            dtype: what the model computes in; None: the dtype its parameters have. In half precision the masters are
                made of the parameters as they were given, before they are rounded.
            tokenizer: is exported with the model; None: none.

        Raises:
            ConfigError: a temperature that is not positive; a decaying schedule or a `warmup_ratio` without
                `total_updates`; gradient checkpointing of a module without layers of transformers; an objective that
                needs the exact KL where there is no reference.
            ModelError: nothing to train, or a model that cannot be copied for the reference.
        """
        _check(config, model, temperature, total_updates)
        self.config = config
        self.objective = objective
        self.regularizer = regularizer
        self.model = model
        self.reference: Reference | None = None
        self.optimizer = self._take_charge(dtype, reference)
        self._teacher = None if teacher is None else Teacher(teacher, model, dtype)
        self._temperature = temperature
        self.tokenizer = tokenizer
        self.pace = Pace(config.learning_rate, config.schedule, total_updates, config.warmup)
        self._needs = objective.needs | regularizer.needs
        _check_reference(objective, self._needs, self.reference)
        self._by_advantage = zero_advantage_is_enough(objective, regularizer)
        self._values: ValueReader | None = None
        self.budget = Budget(config.tokens_per_micro_batch, model.free_decoding)

    def _take_charge(self, dtype: torch.dtype | None, given: CausalModel | None) -> MasterAdamW:
        """Return the optimizer of `model`; the reference is set where there is one, of the model `given` for it."""
        config, model = self.config, self.model
        optimizer = MasterAdamW(model.module, dtype, **config.adamw, has_base=model.adapter is not None)
        if given is not None or self.regularizer.kl.needs_reference:
            self.reference = Reference.of(model, given, dtype)
        return optimizer

    @property
    def version(self) -> int:
        """Return how often the weights have changed: the optimizer's steps."""
        return self.optimizer.steps

    def weights(self) -> LocalWeights:
        """Return the policy's weights as they are now: sampler and learner share the model."""
        return LocalWeights(self.model, self.version)

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """Return `accumulate` and `apply`: one optimizer update on a batch with `advantages` and `token_weights`."""
        return self.apply(self.accumulate(minibatch))

    def also_train(self, reader: ValueReader, loss: ValueLoss) -> None:
        """From now on read values off this model's hidden states and add their loss to every token's."""
        self._values, self.regularizer = reader, replace(self.regularizer, value=loss)
        self._by_advantage = False  # a value may be wrong where the advantage is 0

    def accumulate(self, minibatch: TrainBatch) -> Accumulated:
        """Return the gradient of Σ weight_it · loss_it over the batch, left in the parameters' `.grad`; nothing is
        stepped.

        It depends neither on `tokens_per_micro_batch` nor on the order of rows. Rows without a gradient are left out
        (`rows_with_gradient`); statistics that need their forward pass are means over the others. Where a device runs
        out of memory, the whole batch is computed again in smaller micro-batches, and later batches are, too.

        Raises TrainingError where one row at a time is too much, ValueError where the batch has no `advantages` or
        `token_weights`, or a statistic in `needs` is missing.
        """
        return self.completed(minibatch, self.gradient_of(self.rows_of(minibatch)))

    def rows_of(self, minibatch: TrainBatch) -> TrainBatch | None:
        """Return the rows with a gradient; None where there is none."""
        return rows_with_gradient(minibatch, self._by_advantage)

    def completed(self, minibatch: TrainBatch, accumulated: Accumulated) -> Accumulated:
        """Return what the rows with a gradient gave, with the statistics of the others."""
        observe_rows_without_gradient(accumulated.metrics, minibatch, self.rows_of(minibatch), self.objective)
        return accumulated

    def gradient_of(self, rows: TrainBatch | None) -> Accumulated:
        """Return loss and statistics of `rows`, in micro-batches that fit the device's memory. The gradient is left in
        the parameters' `.grad`.
        """
        if rows is None:
            return self._accumulate(())
        halved = self.budget.halved
        accumulated = self.budget.fit(lambda tokens: self._accumulate(micro_batches(rows, tokens)), rows)
        if self.budget.halved > halved:
            accumulated.metrics.add("optim/out_of_memory", float(self.budget.halved - halved))
        return accumulated

    def _accumulate(self, micros: Iterable[TrainBatch]) -> Accumulated:
        """Return the gradient, loss and statistics of micro-batches."""
        device = module_device(self.model.module)
        metrics = Metrics()
        loss = torch.zeros((), dtype=torch.float64, device=device)
        self.optimizer.zero_grad()
        if self._values is not None:
            self._values.head.zero_grad()  # of an attempt that ran out of memory
        with sparse_embeddings(self.model.module) as settle:
            for micro in micros:
                loss += self._backward(micro, metrics)
                settle()
        return Accumulated(loss, metrics)

    def _backward(self, micro: TrainBatch, metrics: Metrics) -> Tensor:
        """Add the micro-batch's gradient to `.grad` and its statistics to `metrics`; returns its loss `()`."""
        loss = self._loss(micro, metrics)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _loss(self, rows: TrainBatch, metrics: Metrics) -> Tensor:
        """Return the micro-batch's loss `()`, differentiable; its statistics are added to `metrics`."""
        micro = rows.to(module_device(self.model.module))
        rows = rows.having(ref_hidden=micro.ref_hidden)  # else the model reads the host's, without waiting for a device
        head = self.reference.head() if self.reference is not None else None
        read = None if self._values is None else partial(self._values.read, micro=rows)
        stats = token_stats(self.model, rows, self._needs, self._temperature, head, observe=OBSERVED, read=read)
        token = objective_loss(self.objective, stats, micro) + self.regularizer(stats, micro)
        loss: Tensor = token.weighted(micro)
        for key, values in token.stats.items():
            metrics.add(key, values, micro.loss_mask)
        observe_mismatch(metrics, stats.logprobs, micro)
        return loss

    def forget(self, accumulated: Accumulated) -> UpdateResult:
        """Drop the model's gradient; "skipped" where it, or the loss, is not finite."""
        norm, loss = self.optimizer.gradient_norm(), float(accumulated.loss)
        if reason := self.optimizer.refusal(loss, norm):
            return UpdateResult.skip(reason)
        self.optimizer.zero_grad()
        accumulated.metrics.add("policy/loss", loss)
        return UpdateResult(accumulated.metrics)

    def apply(self, accumulated: Accumulated) -> UpdateResult:
        """Return one AdamW step with the accumulated gradient, norm clipped, at the schedule's rate; `.grad` is empty
        then.

        A batch without a row with a gradient has gradient 0. The step is taken all the same, exactly as if the rows had
        been computed: the moments move the weights. With `skip_empty_updates`, or where loss or gradient is not finite,
        only the schedule's position changes. In the latter case the only metric is the skipped update.
        """
        norm, loss = self.optimizer.gradient_norm(), float(accumulated.loss)
        rate = self.pace.next()
        if reason := self.optimizer.refusal(loss, norm):
            return UpdateResult.skip(reason)
        stepped = self.optimizer.step(rate, norm, self.config.max_grad_norm)
        metrics = accumulated.metrics
        metrics.add("policy/loss", loss)
        metrics.add("optim/grad_norm", norm)
        metrics.add("optim/learning_rate", rate)
        metrics.add("optim/updates", float(stepped))
        metrics.add("optim/updates_empty", float(norm == 0))
        if self.reference is not None and self.regularizer.kl.where == "loss":
            metrics.add("policy/kl_coef", self.regularizer.kl.coef)
        return UpdateResult(metrics)

    def scores(self, want: frozenset[str]) -> bool:
        """Return whether `score` computes anything for `want`."""
        has = {"reference": self.reference is not None, "teacher": self._teacher is not None}
        return any(has.get(name, name in ("old", "entropy")) for name in want)

    def score(self, batch: TrainBatch, want: frozenset[str]) -> TrainBatch:
        """Return the batch with what `want` names, without a gradient.

        old         `old_logprobs (B, T)` under the weights as they are now
        entropy     `entropy (B, T)` under the same weights
        reference   `ref_logprobs (B, T)`, and `ref_hidden (N, H)` for the full KL; left out without a reference
        teacher     `teacher_logprobs (B, T)`; left out without a teacher
        values      left out: this learner has no critic
        """
        reference, full = self.reference, "full_kl" in self._needs
        if "reference" in want and reference is not None:
            batch = self.budget.fit(lambda tokens: reference.score(batch, self._temperature, tokens, full), batch)
        if "teacher" in want and self._teacher is not None:
            batch = self._teacher.score(batch, self._temperature, self.budget)
        asked, score = want & {"old", "entropy"}, scored_stats
        if asked:
            seen = self.budget.fit(lambda tokens: score(self.model, batch, self._temperature, tokens, asked), batch)
            batch = batch.having(entropy=seen.entropy)
            batch = batch.having(old_logprobs=seen.logprobs) if "old" in asked else batch
        return batch

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face form, whole or not at all, from its full-precision weights.

        An adapter is merged into them, and written to the folder `adapter` in it as well.
        """
        masters = self.optimizer.masters
        exact = LazyTensors(masters, lambda name: masters[name].detach())
        save(self.model.module, self.tokenizer, folder, exact, adapter=self.model.adapter)

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write masters and moments to `learner.safetensors`, frozen weights and the reference once; the record."""
        record = {"attempts": self.pace.attempts, "tokens_per_micro_batch": self.budget.tokens}
        reference = {} if self.reference is None else {"reference": self.reference.save(folder)}
        return self.optimizer.save(folder, "learner") | record | reference

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote, bit for bit. A checkpoint without a reference leaves the reference as it is.

        Raises CheckpointError: another model's checkpoint, or one with a reference where there is none.
        """
        if self.reference is None and "reference" in meta:
            raise CheckpointError("the checkpoint has a reference, but this run's settings need none (kl.coef = 0)")
        if self.reference is not None and "reference" in meta:
            self.reference.load(folder, meta["reference"])
        self.optimizer.load(folder, "learner", meta)
        self.pace.attempts = int(meta["attempts"])
        self.budget.lower_to(int(meta["tokens_per_micro_batch"]))

    def close(self) -> None:
        """Nothing to release."""

    @property
    def changes(self) -> int:
        """Return how often anything that `save` writes has begun to change: attempts, steps, and moves of the
        reference.
        """
        return self.pace.attempts + self.optimizer.steps + (0 if self.reference is None else self.reference.version)

    def move_reference(self, alpha: float) -> None:
        """π_ref ← α π_θ + (1 - α) π_ref; nothing happens where there is no reference."""
        if self.reference is not None:
            self.reference.move(self.model, self.optimizer.masters, alpha)


def _check(config: LearnerSettings, model: CausalModel, temperature: float, total_updates: int) -> None:
    """Raises ConfigError for settings that the model or the length of the run do not allow."""
    if not temperature > 0:
        raise ConfigError(f"rollout.temperature must be > 0 to train (greedy text has no density), got {temperature}")
    if config.depends_on_length and total_updates < 1:
        key = "warmup_ratio" if config.schedule == "constant" else "schedule"
        value = getattr(config, key)
        raise ConfigError(f"learner.{key} = {value!r} needs to know how many updates the run makes")
    if config.gradient_checkpointing and not recompute_layers(model.module):
        raise ConfigError(
            f"learner.gradient_checkpointing: {type(model.module).__name__} has no layers of transformers to run "
            "again; leave it false"
        )


def _check_reference(objective: Objective, needs: frozenset[str], reference: Reference | None) -> None:
    """Raises ConfigError where the loss needs the distance from a reference, and there is none."""
    if "full_kl" in needs and reference is None:
        raise ConfigError(
            f"objective.kind: {type(objective).__name__} needs full_kl, the distance from a reference, and there is "
            "none; set kl.coef above 0, or give a reference model"
        )


def state_of(learner: LocalLearner) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return all that the next update needs: a record, and tensors, which are views, valid until the next update.

    An adapter's base model is not among them.
    """
    record = {"attempts": learner.pace.attempts, "steps": learner.optimizer.steps, "tokens": learner.budget.tokens}
    parts = {"optimizer": learner.optimizer.state(), "frozen": learner.optimizer.frozen_here}
    if learner.reference is not None:
        record["reference"] = learner.reference.version
        parts["reference"] = learner.reference.state()
    return record, {f"{part}.{name}": tensor for part, found in parts.items() for name, tensor in found.items()}


def take_over(learner: LocalLearner, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Make `learner` as the one whose `state_of` this is, bit for bit. Raises CheckpointError: it has another model."""
    parts: dict[str, dict[str, Tensor]] = {"optimizer": {}, "frozen": {}, "reference": {}}
    for name, tensor in tensors.items():
        part, _, own = name.partition(".")
        parts[part][own] = tensor
    if learner.reference is not None and "reference" in record:
        learner.reference.take_over(record["reference"], parts["reference"])
    learner.optimizer.load_state(parts["optimizer"], record["steps"], parts["frozen"])
    learner.pace.attempts = record["attempts"]
    learner.budget.lower_to(record["tokens"])
