"""Which path a module takes: the fast one only if it gives, now and here, what the module itself gives.

A transformers model with a standard attention goes the fast path. What transformers does not pass through its attention
interface, what asks attention for more than ours does, and what differs from the plain forward in value or gradient
on a few tokens, goes the generic path; the reason is said at the start of a run.

Covered by the probe: positions, heads, scaling, soft caps, anything between the last norm and the logits. Not covered
by a few tokens: what begins only far into a text. Those are known by their settings: chunked attention, unknown layer
types.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor, nn

from oncurve.errors import ModelError
from oncurve.models.aligned import aligned
from oncurve.models.blocks import replace_blocks
from oncurve.models.causal import CausalModel
from oncurve.models.causality import SMALL, check_causal
from oncurve.models.generic import GenericModel
from oncurve.models.leaves import replace_norms
from oncurve.models.lengths import positions_of
from oncurve.models.network import TransformersModel
from oncurve.models.rotation import hold_rotations

__all__ = ["compare", "wrap"]

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}

# value, gradient: relative errors a faithful path stays well below, and a wrong one exceeds by far.
_TOLERANCE = {torch.float64: (1e-6, 1e-5), torch.float32: (1e-4, 1e-3)}
_HALF_TOLERANCE = (5e-2, 1e-1)


def wrap(module: nn.Module, attention: Literal["auto", "generic"] = "auto") -> CausalModel:
    """`module` as a `CausalModel`, put in eval mode: dropout is off everywhere.

    `attention="generic"` asks for the generic path, where the module's parts stay what they were, except for rotations
    that depend on the length of a row (`rotation`). The random generators and the parameters' `.grad` stay as they
    were; parameters that lie in a mapped file move out of it (`aligned`).

    Raises:
        ModelError: the module is not causal, or its logits are not a function of its weights and the tokens; it is left
            as it was.
    """
    aligned(module)
    with ExitStack() as refused:
        for part in module.modules():
            refused.callback(setattr, part, "training", part.training)
        _keep_scale(module)
        hold_rotations(module.eval(), positions_of(module), refused)
        check_causal(module)
        refused.pop_all()
    if attention == "generic":
        return GenericModel(module, _generic('asked for by model.attention = "generic"'))
    if not _from_transformers(module):
        return GenericModel(module, _generic(f"{type(module).__name__} is not a transformers model"))
    obstacle = _declared_obstacle(module)
    if obstacle is None:
        with ExitStack() as undo:
            replace_norms(module, undo)
            replace_blocks(module, undo)
            obstacle = _probe(module)
            if obstacle is None:
                undo.pop_all()
                return TransformersModel(module)
    return GenericModel(module, _generic(f"{type(module).__name__}: {obstacle}"))


def _keep_scale(module: nn.Module) -> None:
    """RWKV halves weights in place where it is run in eval mode, for float16's range; the halves would be exported.

    They are put back, and the setting is switched off: the function is that of training mode.
    """
    for part in module.modules():
        scaled: Any = part
        if hasattr(part, "layers_are_rescaled"):
            scaled.train()
            scaled._rescale_layers()
            scaled.config.rescale_every = 0


def _generic(reason: str) -> str:
    return f"generic path: plain padded forward, no cache, because {reason}"


def _from_transformers(module: nn.Module) -> bool:
    transformers = sys.modules.get("transformers")  # a model from a library that nobody imported does not exist
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def _declared_obstacle(module: Any) -> str | None:
    """What the model says of itself that the fast path cannot do."""
    config = module.config.get_text_config()
    if module.config.is_encoder_decoder:
        return "it is an encoder-decoder"
    if module.get_output_embeddings() is None:
        return "it has no language-model head"
    if not module._supports_attention_backend:
        return "its attention does not go through transformers' AttentionInterface"
    if unknown := set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS:
        return f"it has layers of type {', '.join(sorted(unknown))}"
    if getattr(config, "attention_chunk_size", None):
        return "it attends in chunks"
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if getattr(config, key, None):
            return f"it has a soft cap ({key})"
    return None


def _probe(module: nn.Module) -> str | None:
    """Compare both paths on a few tokens; what speaks against the fast one, or None."""
    small = sum(parameter.numel() for parameter in module.parameters()) <= SMALL
    dtypes = {parameter.dtype for parameter in module.parameters()}
    try:
        if small and any(dtype.itemsize < 4 for dtype in dtypes):
            compare(module)  # that it runs, in the precision it is going to run in; how exact it is, shows in float32
            module, dtypes = copy.deepcopy(module).float(), {torch.float32}
        value, gradient = compare(module, every_gradient=small)
    except ModelError as error:
        return str(error)
    except Exception as error:  # whatever an unknown architecture does with a flat row is a reason, not a crash
        return f"the fast path failed ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    value_limit, gradient_limit = (
        _TOLERANCE[dtypes.pop()] if len(dtypes) == 1 and dtypes <= _TOLERANCE.keys() else _HALF_TOLERANCE
    )
    if not value <= value_limit:
        return f"the fast path's logits differ from its own by {value:.1e} (allowed {value_limit:.0e})"
    if not gradient <= gradient_limit:
        return f"the fast path's gradient differs from its own by {gradient:.1e} (allowed {gradient_limit:.0e})"
    return None


def compare(module: nn.Module, every_gradient: bool = True) -> tuple[float, float]:
    """Relative differences (value, gradient) between the fast path and the plain forward of a transformers model.

    value: the largest difference of a logit in packed training, prefill and decode, over the largest logit. gradient:
    the norm of the difference over the norm, for a fixed combination of all logits, over all trainable parameters or
    (`every_gradient=False`) over biases and norms only, whose gradients every layer's attention has a part in.
    """
    fast, plain = TransformersModel(module), GenericModel(module)
    try:
        return _compare(module, fast, plain, every_gradient)
    finally:
        fast.release()


def _compare(module: nn.Module, fast: CausalModel, plain: CausalModel, every_gradient: bool) -> tuple[float, float]:
    head: Any = module
    vocabulary = int(head.get_output_embeddings().weight.shape[0])
    device = next(module.parameters()).device
    ids = (torch.arange(20, device=device) * 7919 + 5) % vocabulary
    prompts = [ids[:3], ids[3:5]]
    rows = (torch.tensor([0, 0, 1], device=device), ids[5:14].view(3, 3), torch.tensor([3, 1, 2], device=device))
    trained = _trained(module, every_gradient)
    with torch.enable_grad():
        outputs = [model.logits(model.completion_hidden(prompts, *rows)) for model in (fast, plain)]
        weights = torch.cos(torch.arange(outputs[0].numel(), device=device)).view_as(outputs[0])
        gradients = [
            torch.autograd.grad((logits * weights).mean(), trained, allow_unused=True) if trained else ()
            for logits in outputs
        ]
    packed, wanted = (logits.detach() for logits in outputs)
    decoded = _decode(fast, prompts, rows)
    scale = wanted.abs().max()
    value = max(float((got - wanted).abs().max() / scale) for got in (packed, decoded))
    return value, _relative(*gradients)


def _decode(model: CausalModel, prompts: Sequence[Tensor], rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The logits of `completion_hidden`, one token at a time."""
    _, ids, lengths = rows
    decoder = model.decoder(prompts, [2, 1], ids.shape[1])
    steps = [decoder.first_hidden[decoder.groups]]
    steps += [decoder.step(ids[:, column]) for column in range(ids.shape[1] - 1)]
    exists = torch.arange(ids.shape[1], device=ids.device)[None, :] < lengths[:, None]
    with torch.no_grad():
        return model.logits(torch.stack(steps, 1)[exists])


def _trained(module: nn.Module, every: bool) -> list[Tensor]:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    small = [parameter for parameter in trained if parameter.ndim == 1]
    return list(trained if every or not small else small)


def _relative(ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> float:
    difference = reference = 0.0
    for left, right in zip(ours, theirs, strict=True):
        if (left is None) != (right is None):
            return float("inf")
        if left is not None and right is not None:
            difference += float((left.double() - right.double()).square().sum())
            reference += float(right.double().square().sum())
    return 0.0 if difference == 0 else (difference / reference) ** 0.5 if reference else float("inf")
