"""The check that a network is causal: a token's log-probability must depend only on the tokens before it.

An encoder with a language-model head, a decoder whose mask is bidirectional within prompts, a network that depends on
the length of its batch: in each of them a completion token's probability depends on the tokens after it. The sampler
does not have these, so sampler and learner would differ by any amount, and the training would be meaningless.

Covered: the effect of tokens and padding up to `_LENGTH` positions later, at every earlier position. Of a small module
also effects that the rounding of half precision hides, or a trained head or gate that begins at 0. Not covered: a mask
that opens only farther into a text.
"""

import copy

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.models.causal import module_device
from oncurve.models.generic import plain_logits
from oncurve.models.layers.lengths import positions_of

SMALL = 30_000_000
"""Up to this many parameters a float32 copy of the module is checked too."""
_LENGTH = 16
_CUTS = (1, 2, 3, 5, 8, 11, 15)
_LIMITS = {torch.float64: 1e-9, torch.float32: 3e-5}
"""Changes of a logit, relative to the largest logit, that rounding explains."""
_HALF_LIMIT = 3e-2


@torch.no_grad()
def check_causal(module: nn.Module) -> None:
    """Change later tokens, leave them out, and compare the logits before them.

    Raises:
        ModelError: they change; a second call gives other logits; the module does not take a batch of token ids, or
            returns no logits; it changes its own weights.
    """
    before = {name: parameter._version for name, parameter in module.named_parameters()}
    awake = _awake(module)
    _compare(module, in_shapes=awake is None)
    changed = [name for name, parameter in module.named_parameters() if parameter._version != before.get(name)]
    if changed:
        raise ModelError(
            f"{type(module).__name__} changes its own weights when it is run ({changed[0]}): what is trained would not "
            "be what is saved. Make its forward leave its parameters as they are"
        )
    if awake is not None:
        _compare(awake)


def _awake(module: nn.Module) -> nn.Module | None:
    """Return a float32 copy of a small module in which no trained parameter is all 0; None: the copy would show no
    more.

    None too where the module cannot be copied, or does not run in float32.
    """
    parameters = list(module.parameters())
    sleeps = any(parameter.requires_grad and not parameter.any() for parameter in parameters)
    half = any(parameter.dtype.itemsize < 4 for parameter in parameters if parameter.is_floating_point())
    if not (sleeps or half) or sum(parameter.numel() for parameter in parameters) > SMALL:
        return None
    try:
        awake = copy.deepcopy(module)
        awake = awake.float() if half else awake
        for parameter in awake.parameters():
            if parameter.requires_grad and not parameter.any():
                flat = torch.arange(parameter.numel(), device=parameter.device, dtype=parameter.dtype)
                parameter.copy_((flat + 1).cos().mul(0.1).view_as(parameter))
        plain_logits(awake, torch.zeros(1, 1, dtype=torch.int64, device=module_device(awake)))
    except Exception:  # the copy, or the other precision, may fail in any way
        return None
    return awake


def _compare(module: nn.Module, in_shapes: bool = True) -> None:
    rows = _examples(module)
    length = rows.shape[1]
    limit = _limit(module)
    together = plain_logits(module, rows)
    if not together.isfinite().all():  # nothing to compare: the sampler refuses such logits
        return
    scale = together.abs().max().clamp(min=torch.finfo(together.dtype).tiny)
    whole, name = together[0], type(module).__name__
    if _differ(plain_logits(module, rows), together) > limit * scale:
        raise ModelError(
            f"{name} gives other logits for the same tokens in a second call, so its samples could not be "
            "trained. Make its forward a function of the weights and `input_ids` alone"
        )
    for row, cut in zip(together[1:], _cuts(length), strict=True):
        _check(_differ(row[:cut], whole[:cut]), limit * scale, name, f"when the tokens from place {cut} on change")
    for cut in ({length // 2, length - 1} - {0}) if in_shapes else ():
        changes = (plain_logits(module, rows[:, :cut])[0].double() - whole[:cut].double()).abs().amax(-1)
        # Another shape rounds otherwise, and in half precision this sends some tokens to another expert.
        change = float(changes.median() if limit == _HALF_LIMIT else changes.max())
        _check(change, limit * scale, name, f"when there are no tokens from place {cut} on")


def _check(change: float, allowed: Tensor, name: str, when: str) -> None:
    if change > allowed:
        raise ModelError(
            f"{name} is not causal: its logits for earlier tokens change by {change:.1e} {when} (rounding allows "
            f"{float(allowed):.0e}). GRPO trains models that predict each token from the tokens before it; an encoder "
            "such as BERT needs is_decoder = true in its config.json, and weights that were trained so"
        )


def _differ(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def _cuts(length: int) -> list[int]:
    return [cut for cut in _CUTS if cut < length]


def _examples(module: nn.Module) -> Tensor:
    """Return token ids `(1 + c, L)`: a row, and the same row changed from each cut on; L is short enough for the
    module.
    """
    positions, device = positions_of(module), module_device(module)
    error: Exception | None = None
    for length in sorted({min(size, positions or size) for size in (_LENGTH, 8, 4, 2)}, reverse=True):
        try:
            vocabulary = plain_logits(module, torch.zeros(2, length, dtype=torch.int64, device=device)).shape[-1]
            rows = (torch.arange(length, device=device) * 7919 + 3).repeat(1 + len(_cuts(length)), 1) % vocabulary
            for row, cut in zip(rows[1:], _cuts(length), strict=True):
                row[cut:] = (row[cut:] + vocabulary // 2 + 1) % vocabulary
            plain_logits(module, rows)
        except (ModelError, torch.OutOfMemoryError):
            raise
        except Exception as failed:  # too many tokens for the module: any error
            error = error or failed
        else:
            return rows
    raise ModelError(
        f"{type(module).__name__} fails on token ids (batch, length): "
        f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    ) from error


def _limit(module: nn.Module) -> float:
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    return max((_LIMITS.get(dtype, _HALF_LIMIT) for dtype in dtypes), default=_LIMITS[torch.float32])
