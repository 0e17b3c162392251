"""The optimizer: AdamW over full-precision masters, schedules as pure functions, one gradient norm.

What is covered: float32 and float64 parameters (they are their own master), bfloat16 and float16 parameters (a
float32 master each), tied weights (one parameter, one master), frozen parameters (kept, saved, never stepped).
What is not: loss scaling for float16, sharded parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from oncurve.errors import CheckpointError, ModelError

__all__ = ["MasterAdamW", "Schedule", "scheduled_rate"]

Schedule = Literal["constant", "linear", "cosine"]
HALF = (torch.bfloat16, torch.float16)


def scheduled_rate(peak: float, update: int, total: int, warmup: int, schedule: Schedule) -> float:
    """The learning rate of one update: a pure function of its index, so a resumed run needs no scheduler state.

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


class MasterAdamW:
    """AdamW (arXiv:1711.05101) on a full-precision master of every trainable parameter of a module.

    A half-precision parameter accumulates its gradient in float32 (`Parameter.grad_dtype`), the step is taken on its
    float32 master, and the parameter is refreshed from the master once per step: small updates are not lost to
    rounding, and every matrix product still runs in half precision. A float32 or float64 parameter is its own master.

    Every trainable parameter takes part in every step: one that got no gradient has gradient 0. So what a step does
    never depends on which rows of a batch were worth computing.

    `masters` maps a parameter's name (as in `named_parameters`, tied weights once) to its master.
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Take charge of `module`; its floating parameters become `dtype` (None: stay as they are), buffers are left.

        Raises ModelError if nothing in the module can be trained.
        """
        self.parameters: dict[str, nn.Parameter] = {}
        self.masters: dict[str, Tensor] = {}
        for name, parameter in module.named_parameters():
            self.parameters[name] = parameter
            self.masters[name] = _make_master(parameter, dtype)
        self.trained = [name for name, parameter in self.parameters.items() if parameter.requires_grad]
        if not self.trained:
            raise ModelError("no parameter of the model has requires_grad=True: there is nothing to train")
        self.steps = 0
        self._adamw = torch.optim.AdamW(
            [self.masters[name] for name in self.trained],
            lr=0.0,
            betas=betas,
            eps=epsilon,
            weight_decay=weight_decay,
            fused=all(self.masters[name].device.type in ("cpu", "cuda") for name in self.trained),
        )

    def zero_grad(self) -> None:
        """Forget the accumulated gradient."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """The accumulated gradient of every trained parameter, in the master's precision; 0 where none arrived."""
        found: dict[str, Tensor] = {}
        for name in self.trained:
            parameter = self.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(self.masters[name], requires_grad=False)
            found[name] = parameter.grad
        return found

    def gradient_norm(self) -> float:
        """The Euclidean norm of the whole accumulated gradient; not finite if any part of it is not."""
        return float(torch.nn.utils.get_total_norm(self.gradients().values()))

    @torch.no_grad()
    def step(self, learning_rate: float, norm: float, max_norm: float = 0.0) -> None:
        """One AdamW step at `learning_rate` with the gradient times min(1, max_norm / (norm + 1e-6)), forgotten then.

        `norm` is `gradient_norm()`; `max_norm` 0 means no clipping; the 1e-6 is torch's `clip_grad_norm_`.
        Half-precision parameters are refreshed from their masters.
        """
        gradients = self.gradients()
        scale = max_norm / (norm + 1e-6) if max_norm > 0 else 1.0
        if scale < 1:
            for gradient in gradients.values():
                gradient.mul_(scale)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        for name, gradient in gradients.items():
            self.masters[name].grad = gradient
        self._adamw.step()
        self.steps += 1
        self._refresh(self.trained)
        for name in self.trained:
            self.masters[name].grad = None
        self.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Every master and moment by name: `master.*`, `moment1.*`, `moment2.*`. Views: valid until the next step."""
        tensors = {f"master.{name}": master.detach() for name, master in self.masters.items()}
        for name in self.trained:
            moments = self._adamw.state.get(self.masters[name], {})
            if moments:
                tensors[f"moment1.{name}"] = moments["exp_avg"]
                tensors[f"moment2.{name}"] = moments["exp_avg_sq"]
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Take back what `state()` gave after `steps` steps, bit for bit.

        Raises CheckpointError if names, shapes or dtypes are not those of this module; nothing is changed then.
        """
        wanted = {f"master.{name}": master for name, master in self.masters.items()}
        if steps:
            for kind in ("moment1", "moment2"):
                wanted.update({f"{kind}.{name}": self.masters[name] for name in self.trained})
        _check_same(wanted, tensors)
        for name, master in self.masters.items():
            master.copy_(tensors[f"master.{name}"])
        self._adamw.state.clear()
        for name in self.trained if steps else ():
            master = self.masters[name]
            self._adamw.state[master] = {
                "step": torch.tensor(float(steps), dtype=torch.float32, device=master.device),
                "exp_avg": tensors[f"moment1.{name}"].to(master.device, copy=True),
                "exp_avg_sq": tensors[f"moment2.{name}"].to(master.device, copy=True),
            }
        self.steps = steps
        self.zero_grad()
        self._refresh(list(self.parameters))

    def _refresh(self, names: list[str]) -> None:
        for name in names:
            if self.parameters[name] is not self.masters[name]:
                self.parameters[name].copy_(self.masters[name])


def _make_master(parameter: nn.Parameter, dtype: torch.dtype | None) -> Tensor:
    """The master of a parameter, which itself becomes `dtype`: itself, or a float32 copy of what it held before."""
    if not parameter.is_floating_point():
        return parameter
    before = parameter.data
    if dtype is not None and parameter.dtype != dtype:
        parameter.data = before.to(dtype)
    if parameter.dtype not in HALF:
        return parameter
    master = before.to(torch.float32, copy=before.dtype == torch.float32 and before is parameter.data)
    if parameter.requires_grad:
        parameter.grad_dtype = torch.float32
    return nn.Parameter(master, requires_grad=parameter.requires_grad)


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
