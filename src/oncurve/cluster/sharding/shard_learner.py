"""The learner of one rank whose parameters, gradients and optimizer state are shared with the other ranks by FSDP2.

    start           rank 0 sends its model a layer at a time, and each rank keeps its rows
    shard           the rows of every parameter that this rank has: in float32, where they are the master weights, and
                    of a frozen parameter in the compute dtype
    forward         a layer's parameters are gathered in the compute dtype, used, and dropped again
    backward        the same, and each rank gets the summed gradient of its own rows, in float32
    step            MasterAdamW on the shards: AdamW is elementwise, so each rank's step is its part of the whole
    publish         each rank sends its new rows to rank 0, into the copy that engines sample from

No rank but the first ever holds more of a model than its shards and one layer, or the embedding and the head.
All ranks make the same calls with the same number of passes: every pass gathers parameters, which takes all of them. A
rank with fewer micro-batches repeats one at weight 0.

A checkpoint has one safetensors file per rank, and any number of ranks reads it. A rank's part of a tensor is a run of
its rows, `ceil(rows / ranks)` of them, as `torch.chunk` cuts it. On load every rank reads the rows that are its own
now, out of the files that have them. torch.distributed.checkpoint would do the same, but its metadata file is a pickle,
and oncurve loads none.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from oncurve import learner
from oncurve.base.errors import CheckpointError
from oncurve.batching import micro_batches
from oncurve.cluster.sharding.connection import gathered, library, waited
from oncurve.cluster.sharding.divided import Divided, Division, local, on_meta, replace_parameters
from oncurve.durable import LazyTensors, save_tensors
from oncurve.metrics import Metrics
from oncurve.models import CausalModel, module_device, token_stats
from oncurve.types import TokenStats, TrainBatch


class AdapterRows(learner.AdapterReference):
    """As `AdapterReference`, its `tensors` being this rank's float32 rows of the factors.

    Within `selected` they are in the policy's place: what is gathered then is the reference's.
    """

    def __init__(self, policy: Divided, begins_as_base: bool) -> None:
        assert policy.model.adapter is not None
        self._adapter = policy.model.adapter
        self._rows = {name: policy.rows[name] for name in self._adapter.parameters}
        self._begin(policy.model, {} if begins_as_base else self._copied())

    def _copied(self) -> dict[str, Tensor]:
        return {name: rows.clone() for name, rows in self._rows.items()}

    @contextmanager
    def selected(self) -> Iterator[None]:
        """Return a context in which the policy's network computes as the reference does, once nothing of it is
        whole.
        """
        if not self.tensors:
            with self._adapter.off():
                yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, mine in self.tensors.items():
            rows = self._rows[name]
            policy = rows.clone()
            rows.copy_(mine)
            mine.copy_(policy)


@dataclass(frozen=True)
class RankRows:
    """A batch's rows of one rank. `counts`: False where it has none, and this one is for the passes of the others."""

    rows: TrainBatch
    counts: bool = True

    def micro_batches(self, tokens: int) -> Iterator[tuple[TrainBatch, bool]]:
        """As many micro-batches as on the rank with the most, each with whether it is this rank's."""
        own = list(micro_batches(self.rows, tokens, tokens))  # each gathers the weights
        passes = int(max(gathered(float(len(own)))))
        yield from ((micro, True) for micro in own)
        yield from ((own[-1], False) for _ in range(len(own), passes))


class ShardAdamW(learner.MasterAdamW):
    """AdamW on this rank's shards; the gradient's norm is that of all ranks' shards together."""

    def gradient_norm(self) -> float:
        """Return the Euclidean norm of the whole gradient, summed in float64: the same number on all ranks."""
        norms = [torch.linalg.vector_norm(one, dtype=torch.float64) for one in self.gradients().values()]
        return math.sqrt(sum(gathered(float(torch.stack(norms).square().sum()))))


class ShardLearner(learner.LocalLearner):
    """The learner of this rank, made after `join`. Rank 0 also keeps `whole`, a copy that engines sample from.

    Its methods are called on all ranks at the same time. Raises ConfigError, ModelError: what shards cannot do.
    """

    def __init__(
        self,
        *parts: Any,
        offload: bool = False,
        teacher: CausalModel | None = None,
        dtype: torch.dtype | None = None,
        **named: Any,
    ) -> None:
        """As `LocalLearner`. `offload`: shards, their gradients and moments are in the host's memory, where the step is
        made; the device of the model has what is gathered, and activations."""
        self.offload = offload
        super().__init__(*parts, dtype=dtype, **named)
        self._teacher = None if teacher is None else self._taught_by(teacher, dtype)

    def _take_charge(self, dtype: torch.dtype | None, given: CausalModel | None) -> learner.MasterAdamW:
        self.rank, self.size = library.get_rank(), library.get_world_size()
        whole, config = self.model, self.config
        self._divide = Division(module_device(whole.module), self.offload)
        self._device, self.whole = self._divide.device, whole
        frozen = {name: one for name, one in whole.module.named_parameters() if not one.requires_grad}
        for parameter in frozen.values():
            learner.cast_parameter(parameter, dtype)  # before there are shards, too
        self._frozen = learner.KnownByHash(frozen) if frozen else None
        self._policy = self._divide.of(whole, dtype)
        self.model = self._policy.model
        if given is not None or self.regularizer.kl.needs_reference:
            self._referring, self.reference = self._reference_of(given, dtype)
        for parameter in whole.module.parameters():
            learner.cast_parameter(parameter, dtype)
        for model in (whole, given) if self.rank else ():
            if model is not None:
                replace_parameters(model.module, on_meta)  # this rank has its shards alone
        rows, parameters = self._policy.rows, self._policy.parameters
        trained = {name: nn.Parameter(rows[name]) for name, one in parameters.items() if one.requires_grad}
        as_module: Any = SimpleNamespace(named_parameters=trained.items)
        return ShardAdamW(as_module, None, **config.adamw)

    def _reference_of(self, given: CausalModel | None, dtype: torch.dtype | None) -> tuple[Divided, learner.Reference]:
        """Return what `Reference.of` makes, in shards, and the model that computes it."""
        whole = self.whole
        if whole.adapter is None or (given is not None and learner.is_apart(given, whole)):
            divided = self._divide.of(whole if given is None else given, dtype, frozen=True)
            found = learner.Reference(divided.model)
            found.tensors = divided.rows
            return divided, found
        base = gathered(0.0 if self.rank else float(whole.adapter.begins_as_base()))
        return self._policy, AdapterRows(self._policy, bool(base[0]))

    def _taught_by(self, model: CausalModel, dtype: torch.dtype | None) -> learner.Teacher:
        """Return the teacher, in shards; no rank keeps it whole."""
        self._teaching = self._policy
        if model is not self.whole:
            self._teaching = self._divide.of(model, dtype, frozen=True)
            replace_parameters(model.module, on_meta)
        return learner.Teacher(self._teaching.model, self.model)

    def move_reference(self, alpha: float) -> None:
        """Each rank moves its own rows of the reference, float32 rows towards the masters and half ones by an average,
        as `Reference.move` does."""
        if self.reference is not None:
            rows = self._policy.rows
            self.reference.follow(rows, LazyTensors(rows, lambda name: learner.widened(rows[name])), alpha)

    def accumulate_part(self, part: RankRows) -> learner.Accumulated:
        """Return the gradient of all ranks' parts, each rank's own rows of it; loss and statistics of this rank's
        part.
        """
        metrics, loss = Metrics(), torch.zeros((), dtype=torch.float64, device=self._device)
        self.optimizer.zero_grad()
        for micro, counts in part.micro_batches(self.budget.tokens):
            if counts and part.counts:
                loss += self._backward(micro, metrics)
            else:
                self._backward(_weightless(micro), Metrics())
        for name, mine in self.optimizer.parameters.items():
            parameter = self._policy.parameters[name]
            gradient, parameter.grad = parameter.grad, None
            mine.grad = None if gradient is None else local(gradient)
        return learner.Accumulated(loss.cpu(), metrics)

    def _backward(self, micro: TrainBatch, metrics: Metrics) -> Tensor:
        loss: Tensor = self._policy.root.run(self._loss, micro, metrics)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _loss(self, micro: TrainBatch, metrics: Metrics) -> Tensor:
        with learner.rows_looked_up(self._policy.root):
            return super()._loss(micro, metrics)

    def update_part(self, part: RankRows) -> tuple[learner.UpdateResult, learner.Accumulated]:
        """Return one update of all ranks, and loss and statistics of this rank's rows."""
        accumulated = self.accumulate_part(part)
        loss = sum(gathered(float(accumulated.loss)))
        result = self.apply(learner.Accumulated(torch.tensor(loss, dtype=torch.float64), Metrics()))
        if not result.skipped:
            self.publish()
        return result, accumulated

    @torch.no_grad()
    def publish(self) -> None:
        """Fill rank 0's `whole` with the weights as they are now, in the compute dtype."""
        whole = dict(self.whole.module.named_parameters())
        for name in self.optimizer.trained:
            self._collect(name, whole[name].detach())

    def _collect(self, name: str, whole: Tensor) -> None:
        """Fill rank 0's `whole` with the rows of a parameter that all ranks have, in the dtype of `whole`."""
        rows = local(self._policy.parameters[name]).to(self._device, whole.dtype)
        ends = [rows_of(rank, self.size, len(whole)) for rank in range(self.size)]
        if self.rank:
            waited([library.isend(rows, 0)] if len(rows) else [])
            return
        whole[: len(rows)].copy_(rows)
        waited([library.irecv(whole[low:high], rank) for rank, (low, high) in enumerate(ends) if rank and low < high])

    @torch.no_grad()
    def score_part(self, part: RankRows, want: frozenset[str]) -> dict[str, Tensor]:
        """Return what `LocalLearner.score` adds, for this rank's part."""
        found: dict[str, Tensor] = {}
        if "reference" in want and self.reference is not None:
            with self.reference.selected():
                found["ref_logprobs"] = self._stats(self._referring, part, frozenset()).logprobs
        if "teacher" in want and self._teacher is not None:
            seen = self._stats(self._teaching, replace(part, rows=learner.as_read(part.rows)), frozenset())
            found["teacher_logprobs"] = seen.logprobs
        if asked := want & {"old", "entropy"}:
            seen = self._stats(self._policy, part, asked)
            found |= {"old_logprobs": seen.logprobs} if "old" in asked else {}
            found |= {"entropy": seen.entropy} if seen.entropy is not None else {}
        return {name: tensor.cpu() for name, tensor in found.items()}

    def _stats(self, divided: Divided, part: RankRows, want: frozenset[str]) -> TokenStats:
        seen = want & {"entropy"}

        def stats(micro: TrainBatch) -> TokenStats:
            return token_stats(divided.model, micro, temperature=self._temperature, observe=seen)

        return learner.of_the_whole(part.rows, self._passes(divided, part, stats), want)

    def _passes(self, divided: Divided, part: RankRows, compute: Callable[[TrainBatch], Any]) -> list[Any]:
        """Return what `compute` finds in each of this rank's micro-batches."""
        pieces = []
        for micro, own in part.micro_batches(self.budget.tokens):
            computed = divided.root.run(compute, micro)
            pieces += [computed] if own else []
        divided.reshard()
        return pieces

    @staticmethod
    def sees(file: Path) -> bool:
        """Return whether this rank's machine has a file."""
        return file.exists()

    @torch.no_grad()
    def whole_master(self, name: str) -> Tensor:
        """Return a trained parameter in float32, on rank 0 gathered from all ranks. The others' tensors have no
        meaning.
        """
        parameter = self._policy.parameters[name]
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta" if self.rank else self._device)
        self._collect(name, whole)
        return whole

    def save(self, folder: Path) -> dict[str, Any]:
        """Write this rank's shards of trained weights and moments, and of a reference that has moved; the record.

        Of frozen weights the record has the hash: whatever loads a checkpoint has them, too.
        """
        moved = self.reference if self.reference is not None and self.reference.version else None
        reference = {} if moved is None else {f"reference.{name}": rows for name, rows in moved.state().items()}
        save_tensors(folder / file_of(self.rank, self.size), self.optimizer.state() | reference)
        return {
            "reference": 0 if moved is None else moved.version,
            "steps": self.optimizer.steps,
            "attempts": self.pace.attempts,
            "tokens_per_micro_batch": self.budget.tokens,
            "ranks": self.size,
            "shapes": self._shapes,
        } | ({} if self._frozen is None or self.rank else {"base": self._frozen.digest})

    @property
    def _shapes(self) -> dict[str, list[int]]:
        """The whole shape of each trained parameter."""
        return {name: self._policy.shapes[name] for name in self.optimizer.trained}

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote, whatever the number of ranks that wrote it. Raises CheckpointError."""
        shapes = self._shapes
        if "shapes" not in meta or dict(meta["shapes"]) != shapes:
            raise CheckpointError("the checkpoint's shards are of another model than this one")
        if self._frozen is not None and not self.rank:
            self._frozen.check(meta.get("base", ""))
        moved = int(meta["reference"])
        if moved and self.reference is None:
            raise CheckpointError("the checkpoint has a reference, but this run's settings need none (kl.coef = 0)")
        kinds = ["master", *(["moment1", "moment2"] if meta["steps"] else [])]
        names = {f"{kind}.{name}": shape for name, shape in shapes.items() for kind in kinds}
        if moved and self.reference is not None:
            names |= {f"reference.{name}": self._referring.shapes[name] for name in self.reference.names}
        parts = load_part(folder, int(meta["ranks"]), names, self.rank, self.size)
        rows = {key.partition(".")[2]: parts.pop(key) for key in list(parts) if key.startswith("reference.")}
        if moved and self.reference is not None:
            self.reference.take_over(moved, rows)
        self.optimizer.load_state(parts, int(meta["steps"]))
        self.pace.attempts = int(meta["attempts"])
        self.budget.lower_to(int(meta["tokens_per_micro_batch"]))
        self.publish()


def _weightless(micro: TrainBatch) -> TrainBatch:
    """Return the micro-batch at weight 0: its gradient is 0."""
    micro = micro.having(token_weights=torch.zeros_like(micro.loss_mask, dtype=torch.float32))
    return micro if micro.apart_weights is None else micro.having(apart_weights=torch.zeros_like(micro.apart_weights))


def rows_of(rank: int, ranks: int, rows: int) -> tuple[int, int]:
    """Return the first row of a rank's part of `rows`, and the one after its last. Both are `rows` for a rank without
    any.
    """
    size = -(-rows // ranks)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def file_of(rank: int, ranks: int) -> str:
    """Return the name of a rank's file in a checkpoint."""
    return f"learner-{rank:03d}-of-{ranks:03d}.safetensors"


def load_part(folder: Path, written: int, names: Mapping[str, Sequence[int]], rank: int, ranks: int) -> dict[str, Any]:
    """Return the parts of rank `rank` of `ranks` of the tensors in a checkpoint that `written` ranks wrote.

    `names` maps the tensors to their whole shapes. Raises CheckpointError: a file is missing, or has other tensors.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for source in range(written):
        path = folder / file_of(source, written)
        try:
            with safe_open(path, "pt") as file:
                if set(file.keys()) != set(names):
                    raise CheckpointError(f"{path} has other tensors than this model: it belongs to another")
                for name, shape in names.items():
                    low, high = rows_of(rank, ranks, shape[0])
                    first, last = rows_of(source, written, shape[0])
                    begin, end = max(low, first), min(high, last)
                    if begin < end:
                        found[name].append(file.get_slice(name)[begin - first : end - first].clone())
                    elif low == high and not found[name]:
                        found[name].append(file.get_slice(name)[0:0])
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    return {name: torch.cat(parts) for name, parts in found.items()}
