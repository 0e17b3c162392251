"""The optimizer: AdamW over full-precision masters, schedules as pure functions, one gradient norm.

What is covered: float32 and float64 parameters (they are their own master), bfloat16 and float16 parameters (a
float32 master each; for bfloat16 also a split master, and moments in bfloat16), tied weights (one parameter, one
master), frozen parameters (in the compute dtype, without master, moments or gradient).
What is not: loss scaling for float16, sharded parameters.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from oncurve import durable
from oncurve.base.errors import CheckpointError, ModelError
from oncurve.durable import LazyTensors
from oncurve.learner.optimizer.adamw import SlicedAdamW
from oncurve.learner.optimizer.masters import cast_parameter, make_master, widened
from oncurve.learner.stored_once import KnownByHash, StoredOnce
from oncurve.models.head import kept_gradient

Schedule = Literal["constant", "linear", "cosine"]
MasterKind = Literal["float32", "split"]
MomentKind = Literal["float32", "bfloat16"]


def scheduled_rate(peak: float, update: int, total: int, warmup: int, schedule: Schedule) -> float:
    """Return the learning rate of one update: a pure function of its index, so a resumed run needs no scheduler state.

        warm-up, u < W:    peak · (u + 1) / W           (the first update already moves; update W - 1 is at the peak)
        after, with x = (u - W) / max(1, N - W), at most 1:
        constant           peak
        linear             peak · (1 - x)
        cosine             peak · ½ (1 + cos πx)

    `update` u is counted from 0, `total` N is the number of updates of the run, `warmup` W of them warm up. Past the
    end (u >= N) the decaying schedules stay at 0.
    """
    if update < warmup:
        return peak * (update + 1) / warmup
    progress = min(1.0, (update - warmup) / max(1, total - warmup))
    factors = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
    return peak * factors[schedule]


@dataclass
class Pace:
    """The learning rate of each update of a run, and how far the run is in it.

    total      updates of the run
    warmup     of so many updates, those that warm up
    attempts   updates begun so far, skipped ones included
    """

    peak: float
    schedule: Schedule
    total: int = 0
    warmup: Callable[[int], int] = lambda total: 0
    attempts: int = 0

    def next(self) -> float:
        """Return the learning rate of the next update, and count it as begun."""
        rate = scheduled_rate(self.peak, self.attempts, self.total, self.warmup(self.total), self.schedule)
        self.attempts += 1
        return rate


class MasterAdamW:
    """AdamW (arXiv:1711.05101) on a full-precision master of every trainable parameter of a module.

    A half-precision parameter accumulates its gradient in float32 (`models.gradients`), the step is taken on its
    float32 master, and the parameter follows the master: small updates are not lost to rounding, and every matrix
    product still runs in half precision. A float32 or float64 parameter is its own master.

    Bytes per bfloat16 parameter, gradient included: weight and master 6 or, split, 4; moments 8 or, in bfloat16, 4;
    gradient 4: so 18, 16, 14 or 12. A frozen parameter (`requires_grad=False`) takes its 2 bytes and nothing else.

    Every trainable parameter takes part in every step: one without a gradient has gradient 0. So a step never depends
    on which rows of a batch were computed.

    masters   a parameter's name (as in `named_parameters`, tied weights once) to its full-precision value: of a frozen
              one its own value, widened; of a split one a tensor made on access
    frozen    the frozen parameters by name
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        masters: MasterKind = "float32",
        moments: MomentKind = "float32",
        has_base: bool = False,
        skip_empty_updates: bool = False,
    ) -> None:
        """Take charge of `module`; its floating parameters become `dtype` (None: stay as they are), buffers are left.

        `has_base`: the frozen parameters are a base model, which whatever loads a checkpoint has too: only their hash
        is stored. `skip_empty_updates`: a gradient of norm 0 makes no step.
        Raises ModelError, with nothing changed, if all parameters of the module are frozen.
        """
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        self.trained = [name for name, parameter in self.parameters.items() if parameter.requires_grad]
        if not self.trained:
            raise ModelError("no parameter of the model has requires_grad=True: there is nothing to train")
        self.frozen = {name: parameter for name, parameter in self.parameters.items() if not parameter.requires_grad}
        for parameter in self.frozen.values():
            cast_parameter(parameter, dtype)
        self._masters = {name: make_master(self.parameters[name], dtype, masters == "split") for name in self.trained}
        self.masters = LazyTensors(self.parameters, self._exact)
        self.steps = 0
        self._skip_empty = skip_empty_updates
        self._stored = StoredOnce()
        self._base = KnownByHash(self.frozen) if has_base else None
        numbers = {"beta1": betas[0], "beta2": betas[1], "eps": epsilon, "weight_decay": weight_decay}
        self._adamw = SlicedAdamW(self._masters, numbers, moments == "bfloat16")

    @property
    def frozen_here(self) -> Mapping[str, Tensor]:
        """The frozen parameters that are this module's own: without a base model, which is loaded from elsewhere."""
        return self.frozen if self._base is None else {}

    @property
    def trained_count(self) -> int:
        """Return how many numbers are trained."""
        return sum(self.parameters[name].numel() for name in self.trained)

    def _exact(self, name: str) -> Tensor:
        """Return a parameter's value in full precision."""
        return self._masters[name].whole() if name in self._masters else widened(self.frozen[name].detach())

    def zero_grad(self) -> None:
        """Drop the accumulated gradient."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Return every trained parameter's accumulated gradient, dense, in the master's precision; 0 where none
        arrived.
        """
        found: dict[str, Tensor] = {}
        for name in self.trained:
            parameter = self.parameters[name]
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or not gradient.is_contiguous():
                buffer = kept_gradient(parameter)
                if buffer is None:
                    buffer = torch.empty(parameter.shape, dtype=self._masters[name].dtype, device=parameter.device)
                buffer.zero_()
                gradient = buffer if gradient is None else buffer.add_(gradient)
                parameter.grad = gradient
            found[name] = gradient
        return found

    def gradient_norm(self) -> float:
        """Return the Euclidean norm of the whole accumulated gradient; not finite if any part of it is not."""
        return float(torch.nn.utils.get_total_norm(self.gradients().values()))

    def refusal(self, loss: float, norm: float) -> str | None:
        """Return why an update of this loss and gradient norm makes no step, and drop its gradient; None: both are
        finite. The reason names the first parameter whose gradient is not.
        """
        if math.isfinite(loss) and math.isfinite(norm):
            return None
        broken = [name for name, gradient in self.gradients().items() if not bool(gradient.isfinite().all())]
        self.zero_grad()
        where = f", first in {broken[0]} ({len(broken)} of {len(self.trained)} parameters)" if broken else ""
        return f"loss {loss:.4g}, gradient norm {norm:.4g}{where}"

    @torch.no_grad()
    def step(self, learning_rate: float, norm: float, max_norm: float = 0.0) -> bool:
        """Take one AdamW step at `learning_rate` with the gradient times min(1, max_norm / (norm + 1e-6)).

        `norm` is `gradient_norm()`; `max_norm` 0 means no clipping; the 1e-6 is torch's `clip_grad_norm_`.
        Half-precision parameters follow their masters, and the gradient is dropped. Returns whether the step was taken:
        with `skip_empty_updates` one of norm 0 is not.
        """
        if self._skip_empty and norm == 0:
            self.zero_grad()
            return False
        scale = max_norm / (norm + 1e-6) if max_norm > 0 else 1.0
        gradients = self.gradients()
        self.steps += 1  # before the first weight changes, so that a step that fails half-way can be told
        self._adamw.step(gradients, scale, learning_rate, self.steps)
        self.zero_grad()
        return True

    def state(self) -> dict[str, Tensor]:
        """Return every master and moment by name: `master.*` (split: `high.*` and `low.*`), `moment1.*`, `moment2.*`.

        Views: valid until the next step.
        """
        tensors = {
            f"{kind}.{name}": tensor
            for name, master in self._masters.items()
            for kind, tensor in master.stored().items()
        }
        for name, moments in self._adamw.moments.items():
            tensors[f"moment1.{name}"], tensors[f"moment2.{name}"] = moments.both
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], steps: int, frozen: Mapping[str, Tensor] | None = None) -> None:
        """Restore what `state()` gave after `steps` steps, bit for bit, and with `frozen` what `frozen_here` gave.

        Raises CheckpointError, with nothing changed, if names, shapes or dtypes are not those of this module.
        """
        if frozen is not None:
            _check_same(self.frozen_here, frozen)
        before = self._adamw.moments
        if not steps:
            self._adamw.moments = {}
        elif not before:
            self._adamw.begin()
        wanted = self.state()
        try:
            _check_same(wanted, tensors)
        except CheckpointError:
            self._adamw.moments = before
            raise
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])
        for master in self._masters.values():
            master.refresh()
        for name, tensor in (frozen or {}).items():
            self.frozen[name].copy_(tensor)
        self.steps = steps
        self.zero_grad()

    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write `state()` to `<name>.safetensors` in `folder`, and the frozen parameters once; the record of both.

        Of a base model the record has the hash.
        """
        durable.save_tensors(folder / f"{name}.safetensors", self.state())
        if self._base is not None:
            return {"steps": self.steps, "base": self._base.digest}
        return {"steps": self.steps, "frozen": self._stored.save(folder, 0, self.frozen_here)}

    @torch.no_grad()
    def load(self, folder: Path, name: str, record: Mapping[str, Any]) -> None:
        """Restore what `save` wrote, bit for bit. Raises CheckpointError, with nothing changed, for another model's."""
        tensors, steps = durable.read_tensors(folder / f"{name}.safetensors"), int(record["steps"])
        if self._base is not None:
            self._base.check(record["base"])
            self.load_state(tensors, steps)
            return
        self.load_state(tensors, steps, self._stored.load(folder, 0, record["frozen"]))


def _check_same(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    if missing := sorted(wanted.keys() - given.keys()):
        raise CheckpointError(f"the checkpoint has no tensor {missing[0]!r}: it belongs to another model")
    if extra := sorted(given.keys() - wanted.keys()):
        raise CheckpointError(f"the checkpoint's tensor {extra[0]!r} is not in this model: it belongs to another")
    for name, tensor in wanted.items():
        if tensor.shape != given[name].shape or tensor.dtype != given[name].dtype:
            raise CheckpointError(
                f"the checkpoint's {name!r} is {tuple(given[name].shape)} {given[name].dtype}, "
                f"this model's is {tuple(tensor.shape)} {tensor.dtype}"
            )
