"""The body of a model of the Llama family as one function: for a decoding step, which is short, and its prefill.

    x = embed(ids);   x += attention(norm(x)),  x += mlp(norm(x))  in every layer;   norm(x)

A third of a small model's step is spent between the operations: in calls of modules, their keyword arguments and
settings. This calls the same blocks one after another, without a gradient, and computes the tables of the rotation once
for many positions. A body is run this way only if both give the same on an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.models.attention.hook import AttentionContext
from oncurve.models.layers.blocks import Recorder, blocks_of, close, rotation_of
from oncurve.models.layers.prepacked_weights import PrepackedWeights
from oncurve.models.layers.rms_norm import rows_normed

_CONSTANT_ROTATIONS = ("default", "linear", "llama3", "yarn")
_AHEAD = 1024
"""Positions whose rotation is computed before they are reached."""


class StraightBody:
    """The body with packed products, called as `prefill.Run`.

    Runs under inference mode, which takes an eighth off a small model's step: a stored tensor of it could not take part
    in a gradient afterwards, so nothing here is stored in a module. What leaves is a usual tensor.
    """

    def __init__(self, body: Any, wide: bool, prepacked: PrepackedWeights) -> None:
        self._body, self._wide, self._prepacked = body, wide, prepacked
        self._shared = body.layers[0].self_attn.shared
        self._layers = [
            (layer.input_layernorm, layer.self_attn.attended, layer.post_attention_layernorm, layer.mlp.forward)
            for layer in body.layers
        ]
        self._tables = torch.empty(2, 0)

    def __call__(self, ids: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        """Return `(N,)` ids and positions of one flat row -> `(N, H)` after the final norm."""
        with torch.inference_mode(), self._shared.using(self._prepacked):
            x = self._body.embed_tokens(ids)
            x = x.float() if self._wide and x.dtype.itemsize < 4 else x
            rotation = self._rotation(x, positions)
            for one, attention, other, mlp in self._layers:
                x = x + attention(rows_normed(x, one.weight, one.eps), rotation, context)
                x = x + mlp(rows_normed(x, other.weight, other.eps))
            hidden = rows_normed(x, self._body.norm.weight, self._body.norm.eps)
        return hidden.clone()

    def _rotation(self, x: Tensor, positions: Tensor) -> Any:
        last = int(positions.max())
        if last >= self._tables.shape[1]:
            every = torch.arange(last + _AHEAD, device=x.device)[None]
            self._tables = torch.stack(rotation_of(self._body.rotary_emb(x[None], every)))
        return self._tables.index_select(1, positions).unbind()


def hooked(body: nn.Module) -> bool:
    """Return whether a part of `body` has hooks, which `StraightBody` would not call; those of its rotation it does."""
    return any(
        (part._forward_hooks or part._forward_pre_hooks) and not name.endswith("rotary_emb")
        for name, part in body.named_modules()
    )


def is_straight(body: Any, wide: bool, run: Callable[[Tensor, Tensor, AttentionContext], Tensor]) -> bool:
    """Return whether `StraightBody` computes what `run` of the same body does, and stores nothing in it."""
    constant = getattr(getattr(body, "rotary_emb", None), "rope_type", None) in _CONSTANT_ROTATIONS
    blocks = len(blocks_of(body))
    if not constant or not blocks or blocks != 2 * len(getattr(body, "layers", ())):
        return False
    try:
        ids = torch.arange(4, device=body.embed_tokens.weight.device)
        return close(StraightBody(body, wide, {})(ids, ids, Recorder()), run(ids, ids, Recorder()))
    except (AttributeError, RuntimeError, TypeError, ValueError):  # parts of another kind or name
        return False
