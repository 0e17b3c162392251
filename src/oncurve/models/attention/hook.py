"""The hook in transformers' attention: one function, registered as "oncurve", that hands the work to a context.

transformers lets a model's attention be any registered function. Ours does no attention itself. A *context*, passed
down through the model's forward as the keyword argument `oncurve_context`, does it in one of three modes:

    packed training   `packed_rows.PackedContext`     prompts once per group, then their completions, nothing padded
    prefill           `prefill.PrefillContext`        prompts, whose keys and values are kept
    decode            `cached_decoder`, `graph_loop`  one new token per row, after the group's prefix and its own suffix

No mask function is registered on purpose: for a name without one, transformers builds no mask at all, and a context
makes its own. The name is set on the model's configuration only while a context runs (`switched`), so the module stays
as it was for all other callers.

Covered: grouped-query heads, scaling, sliding windows, bf16. Refused with `ModelError`, never ignored: soft caps,
sinks, biases, dropout, masks of the model's own, and any keyword argument that is not listed here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from oncurve.base.errors import ModelError

NAME = "oncurve"

# What a model may pass down that does not change its attention: positions are in the keys already, caches are ours.
_HARMLESS = frozenset({"position_ids", "cache_position", "position_embeddings", "use_cache", "past_key_values"})


class AttentionContext(Protocol):
    """One mode of attention over a flat row of N tokens."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer.

        Args:
            layer: index of the layer, by which keys and values are stored.
            query: `(N, h, d)`, rotated already.
            key, value: `(N, h_kv, d)`, h a multiple of h_kv.
            scale: factor of the scores.
            window: a token sees itself and the `window` - 1 tokens before it; None: all before it.

        Returns:
            `(N, h, d_v)`.
        """


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    oncurve_context: AttentionContext | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: `(1, h, N, d)` in, `(1, N, h, d)` out, by the context.

    Raises:
        ModelError: the model needs something of its attention that this implementation does not have.
    """
    used = [name for name, given in others.items() if given is not None and given is not False]
    unknown = set(used) - _HARMLESS
    if oncurve_context is None:
        raise ModelError(f"{type(module).__name__} does not pass keyword arguments down to its attention")
    if unknown:
        raise ModelError(f"{type(module).__name__} uses {', '.join(sorted(unknown))} in its attention")
    if dropout:
        raise ModelError(f"{type(module).__name__} uses dropout {dropout} in its attention")
    if attention_mask is not None:
        raise ModelError(f"{type(module).__name__} has an attention mask of its own")
    if is_causal is False or not getattr(module, "is_causal", True):
        raise ModelError(f"{type(module).__name__} is not causal")
    if query.shape[0] != 1:
        raise ModelError(f"{type(module).__name__} computes attention over {query.shape[0]} rows instead of 1")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ModelError(f"{type(module).__name__} has no layer_idx")
    if (sliding_window is not None) != _slides(module, layer, sliding_window):
        raise ModelError(f"{type(module).__name__} and its configuration disagree about a sliding window")
    factor = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    asked, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
    return oncurve_context.attend(layer, asked, keys, values, factor, sliding_window)[None], None


def _slides(module: nn.Module, layer: int, given: int | None) -> bool:
    """Return whether the configuration gives this layer a window: transformers' own masks go by it, ours by `given`."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return bool(kinds[layer] == "sliding_attention")
    return (given if config is None else getattr(config, "sliding_window", None)) is not None


@contextmanager
def switched(config: Any) -> Iterator[None]:
    """Within: the model of this configuration attends by the context it is given. After: as before."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)  # a process that a model was sent to does not know the name yet
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
