"""The choice of a module's path: the fast one only if its values and gradients agree with the module's own.

A transformers model with a standard attention takes the fast path. A model takes the generic path if its attention does
not go through transformers' attention interface, if it needs more of attention than ours does, or if its value or
gradient on a few tokens differs from the plain forward. The plan states the reason.

Covered by the probe: the packed forward, and the token loop that rollout runs with its cache, prepacked weights or CUDA
graphs; positions, heads, scaling, soft caps, and everything between the last norm and the logits. Not covered by a few
tokens: effects that begin far into a text. Those are found by their settings: chunked attention, unknown layer types.
"""

import copy
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.models.adapters.adapter import Adapter
from oncurve.models.adapters.inject import refuse_adapter
from oncurve.models.causal import CausalModel, DecodeRequest, TokenLoop, module_device
from oncurve.models.causality import SMALL, check_causal
from oncurve.models.generic import GenericModel, plain_logits
from oncurve.models.layers.alignment import aligned
from oncurve.models.layers.blocks import replace_blocks
from oncurve.models.layers.lengths import positions_of
from oncurve.models.layers.rms_norm import replace_norms
from oncurve.models.layers.rotation import hold_rotations
from oncurve.models.network import TransformersModel
from oncurve.ops import at_least_float32
from oncurve.randomness import row_keys, uniform_at

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}

# value, gradient: relative errors well above those of rounding, and far below those of a wrong path.
_TOLERANCE = {torch.float64: (1e-6, 1e-5), torch.float32: (1e-4, 1e-3)}
_HALF_TOLERANCE = (5e-2, 1e-1)


def wrap(
    module: nn.Module, attention: Literal["auto", "generic"] = "auto", adapter: Adapter | None = None
) -> CausalModel:
    """Return `module` as a `CausalModel`, put in eval mode: dropout is off everywhere.

    With `attention="generic"` it takes the generic path, where the module's parts are unchanged, except for rotations
    that depend on the length of a row (`rotation`). The random generators and the parameters' `.grad` are unchanged;
    parameters in a mapped file are copied out of it (`aligned`). `adapter` is the adapter in the module: the probe runs
    it with factors that are not 0.

    Raises:
        ModelError: the module is not causal, its logits are not a function of its weights and the tokens, or the
            adapter has no effect, or it has an adapter of PEFT's and `adapter` is None; it is unchanged.
    """
    if hasattr(module, "get_base_model"):
        raise ModelError(
            "the model is a PeftModel; give its base model, model.unload(), with settings={'lora': {'rank': 16}}; to "
            "go on with its adapter, save it first, model.save_pretrained(FOLDER), and set {'lora': {'path': FOLDER}}"
        )
    if adapter is None:
        refuse_adapter(module)
    aligned(module)
    with ExitStack() as refused:
        for part in module.modules():
            refused.callback(setattr, part, "training", part.training)
        _keep_scale(module)
        hold_rotations(module.eval(), positions_of(module), refused)
        check_causal(module)
        if adapter is not None:
            _check_effect(module, adapter)
        refused.pop_all()
    asked = 'asked for by model.attention = "generic"' if attention == "generic" else None
    reason = asked or _obstacle(module, adapter)
    if reason is None:
        return TransformersModel(module, adapter=adapter)
    return GenericModel(module, f"generic path: plain padded forward, no cache, because {reason}", adapter)


def _obstacle(module: nn.Module, adapter: Adapter | None) -> str | None:
    """Return why the fast path cannot compute `module`; None: it can, and the module's parts are replaced."""
    name, transformers = type(module).__name__, sys.modules.get("transformers")  # without it there is no such model
    if transformers is None or not isinstance(module, transformers.PreTrainedModel):
        return f"{name} is not a transformers model"
    if declared := _declared_obstacle(module):
        return f"{name}: {declared}"
    with ExitStack() as undo:
        replace_norms(module, undo)
        replace_blocks(module, undo)
        with nullcontext() if adapter is None else adapter.perturbed():
            found = _probe(module)
        if found is None:
            undo.pop_all()
    return found and f"{name}: {found}"


@torch.no_grad()
def _check_effect(module: nn.Module, adapter: Adapter) -> None:
    """Raises ModelError where the module does not call the layers of its adapter, but reads their weights."""
    one = torch.zeros(1, 1, dtype=torch.int64, device=module_device(module))
    with adapter.off():
        vocabulary = plain_logits(module, one).shape[-1]
        # several tokens that differ: queries and keys have no effect on a row of one token, or of equal ones
        ids = (torch.arange(8, device=one.device) * 7919 + 5)[None] % vocabulary
        base = plain_logits(module, ids)
    with adapter.perturbed():
        if torch.equal(plain_logits(module, ids), base):
            raise ModelError(
                f"lora: an adapter on {adapter.paths[0]} and {len(adapter.paths) - 1} more layers changes nothing, "
                f"because {type(module).__name__} does not call these layers; name others in lora.targets"
            )


def _keep_scale(module: nn.Module) -> None:
    """RWKV halves weights in place in eval mode, for float16's range; the halves would be exported.

    This restores them and switches the setting off: the function is that of training mode.
    """
    for part in module.modules():
        scaled: Any = part
        if hasattr(part, "layers_are_rescaled"):
            scaled.train()
            scaled._rescale_layers()
            scaled.config.rescale_every = 0


def _declared_obstacle(module: Any) -> str | None:
    """Return a setting of the model that the fast path cannot compute; None: there is none."""
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
    """Compare both paths on a few tokens: the reason against the fast one, or None."""
    small = sum(parameter.numel() for parameter in module.parameters()) <= SMALL
    dtypes = {parameter.dtype for parameter in module.parameters()}
    try:
        if small and any(dtype.itemsize < 4 for dtype in dtypes) and all(d.is_floating_point for d in dtypes):
            compare(module)  # whether it runs in its own precision; float32 shows how exact it is
            module, dtypes = copy.deepcopy(module).float(), {torch.float32}
        value, gradient = compare(module, every_gradient=small)
    except ModelError as error:
        return str(error)
    except Exception as error:  # any failure of an unknown architecture on a flat row is a reason
        return f"the fast path failed ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    value_limit, gradient_limit = max(_TOLERANCE.get(dtype, _HALF_TOLERANCE) for dtype in dtypes)
    if not value <= value_limit:
        return f"the fast path's logits differ from its own by {value:.1e} (allowed {value_limit:.0e})"
    if not gradient <= gradient_limit:
        return f"the fast path's gradient differs from its own by {gradient:.1e} (allowed {gradient_limit:.0e})"
    return None


def compare(module: nn.Module, every_gradient: bool = True) -> tuple[float, float]:
    """Return relative differences (value, gradient) between the fast path and the plain forward of a transformers
    model.

    value: the largest difference of a logit, in packed training and in the token loop, over the largest logit.
    gradient: the norm of the difference over the norm, for a fixed combination of all logits, over all trainable
    parameters or (`every_gradient=False`) over biases and norms only, which depend on every layer's attention.
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
    written, lengths = ids[5:17].view(2, 2, 3), torch.tensor([3, 1, 2, 3], device=device)
    rows = (torch.tensor([0, 0, 1, 1], device=device), written.flatten(0, 1), lengths)
    trained = _trained(module, every_gradient)
    with torch.enable_grad():
        outputs = [model.logits(model.completion_hidden(prompts, *rows)) for model in (fast, plain)]
        weights = torch.cos(torch.arange(outputs[0].numel(), device=device)).view_as(outputs[0])
        gradients = [
            torch.autograd.grad((logits * weights).mean(), trained, allow_unused=True) if trained else ()
            for logits in outputs
        ]
    packed, wanted = (logits.detach() for logits in outputs)
    exists = torch.arange(3, device=device)[None, :] < lengths[:, None]
    decoded = forced_logits(fast.token_loop(), prompts, written, lengths.view(2, 2)).flatten(0, 1)[exists]
    scale = wanted.abs().max()
    value = max(float((got - wanted).abs().max() / scale) for got in (packed, decoded))
    return value, _relative(*gradients)


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


def forced_logits(
    loop: TokenLoop, prompts: Sequence[Tensor], ids: Tensor, lengths: Tensor | None = None, at_once: int | None = None
) -> Tensor:
    """Return logits `(M, G, T, V)`, float32 at least, that predict each token of the completions `ids (M, G, T)`.

    lengths   (M, G) in 0..T: row by row, so many tokens are decoded, and later logits mean nothing; None: T
    at_once   `DecodeRequest.max_concurrent`

    The sampler draws the given tokens, so this is the very loop that rollout uses, caches included.
    """
    groups, copies, longest = ids.shape
    keys = row_keys(0, 0, torch.arange(groups).repeat_interleave(copies), torch.arange(copies).repeat(groups))
    draw = _Forced(keys.to(ids.device), ids.flatten(0, 1))
    # One token more than is read: a row that has ended may be drawn for again at its last position.
    limits = torch.full((groups, copies), longest) if lengths is None else lengths.cpu()
    loop(DecodeRequest(prompts, keys.view(groups, copies), limits + 1, longest + 1, (), draw, None, at_once))
    return draw.logits[:-1].view(groups, copies, longest + 1, -1)[:, :, :-1]


class _Forced:
    """A `Draw` that gives known tokens and keeps the logits, in operations that a CUDA graph can hold.

    A uniform tells which token of which row is drawn, since no two of them are equal. keys (n,); ids (n, T).
    """

    def __init__(self, keys: Tensor, ids: Tensor) -> None:
        positions = torch.arange(ids.shape[1] + 1, device=ids.device)
        self._uniforms = uniform_at(keys[:, None], positions[None, :]).flatten()
        self._ids = torch.cat([ids, ids[:, :1]], 1).flatten()
        self.logits = torch.empty(0)
        """`(n · (T + 1) + 1, V)`; the last row is of rows that are no longer there."""

    def __call__(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the known tokens, with log-probabilities of 0."""
        if not len(self.logits):
            self.logits = at_least_float32(logits).new_zeros(len(self._ids) + 1, logits.shape[1])
        same = uniforms[:, None] == self._uniforms[None, :]
        token = same.to(torch.int64).argmax(1)
        self.logits.index_copy_(0, torch.where(same.any(1), token, len(self._ids)), at_least_float32(logits))
        return self._ids[token], self.logits.new_zeros(len(token))
