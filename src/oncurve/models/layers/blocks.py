"""Attention and gated MLP of the Llama family, in place of those of transformers: same parameters, fewer steps.

    attention   q, k, v = W_q x, W_k x, W_v x;  rotated;  W_o attend(q, k, v)       Llama, Qwen2, Qwen3, Mistral, ...
    gated MLP   W_down (act(W_gate x) * W_up x)

A decode step of a small model is hundreds of calls of a microsecond each. These blocks make half as many: heads are not
copied, q and k are rotated together, and products with one input are joined where the weights are packed
(`prepacked_weights.py`). Without `oncurve_context` a block runs the code of transformers.

A block is replaced only if both compute the same on an example. So a block with other projections, another rotation or
other arguments for its attention keeps the code of transformers.

A third of a small model's step is spent between the operations: in calls of modules, their keyword arguments and
settings. `StraightBody` is the body of such a model as one function, for a decoding step, which is short, and its
prefill. It calls the same blocks one after another, without a gradient, and computes the tables of the rotation once
for many positions:

    x = embed(ids);   x += attention(norm(x)),  x += mlp(norm(x))  in every layer;   norm(x)

A body is run this way only if both give the same on an example.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.models.adapters.layer import base_of, low_rank_of, products
from oncurve.models.attention.hook import AttentionContext, switched
from oncurve.models.head.linear_logprobs import matrix_of
from oncurve.models.layers.elementwise import Rotation, gated_product, gated_products, rotated
from oncurve.models.layers.prepacked_weights import PrepackedWeights
from oncurve.models.layers.rms_norm import rows_normed
from oncurve.models.layers.rotation import put_back


class Shared:
    """The state that the blocks of one model share while it runs: packed weights, and tables of the last rotation."""

    def __init__(self) -> None:
        self.prepacked: PrepackedWeights = {}
        self._tables: tuple[Tensor, Tensor] | None = None
        self._rotation: Rotation | None = None

    def rotation(self, tables: tuple[Tensor, Tensor]) -> Rotation:
        """Return the rotation of transformers' `(1, N, d)` cosines and sines, computed once for all layers."""
        if self._tables is not tables or self._rotation is None:
            self._tables, self._rotation = tables, rotation_of(tables)
        return self._rotation

    @contextmanager
    def using(self, prepacked: PrepackedWeights) -> Iterator[None]:
        """Return a context in which the model uses these packed products."""
        self.prepacked = prepacked
        try:
            yield
        finally:
            self.prepacked, self._tables, self._rotation = {}, None, None


def rotation_of(tables: tuple[Tensor, Tensor]) -> Rotation:
    """Return the rotation of transformers' `(1, N, d)` cosines and sines."""
    cosines, sines = tables
    half = sines.shape[-1] // 2
    signed = torch.cat([-sines[..., :half], sines[..., half:]], -1)
    return cosines[0, :, None], signed[0, :, None]


class Block(nn.Module):
    """The class that `replace_blocks` puts before a block's own class."""

    products: ClassVar[tuple[tuple[str, ...], ...]]
    """Linear layers by name; the layers of one tuple have the same input."""
    shared: Shared

    def groups(self) -> list[list[nn.Module]]:
        """Return the layers of `products`."""
        return [[getattr(self, name) for name in names] for names in self.products]

    def _product(self, x: Tensor, index: int) -> Tensor | list[Tensor]:
        """Return `products[index]` of `x`: one concatenated tensor where they are packed; else one tensor each."""
        packed = self.shared.prepacked.get(self)
        if packed is not None:
            return packed[index](x)
        return products([getattr(self, name) for name in self.products[index]], x)


class _Attention(Block):
    products = (("q_proj", "k_proj", "v_proj"), ("o_proj",))
    size: int
    factor: float
    window: int | None

    def forward(self, *inputs: Any, **others: Any) -> Any:
        """As the module's own; with `oncurve_context` the context's attention: `(1, N, H)` -> `((1, N, H), None)`."""
        context: AttentionContext | None = others.get("oncurve_context")
        if context is None or inputs or others.get("attention_mask") is not None:
            return super().forward(*inputs, **others)
        rotation = self.shared.rotation(others["position_embeddings"])
        return self.attended(others["hidden_states"][0], rotation, context)[None], None

    def attended(self, x: Tensor, rotation: Rotation, context: AttentionContext) -> Tensor:
        """Return the block of `x (N, H)`: `(N, H)`."""
        query, key, value = self._heads(x, rotation)
        layer: Any = self.layer_idx
        out = self._product(context.attend(layer, query, key, value, self.factor, self.window).flatten(1), 1)
        return out if isinstance(out, Tensor) else out[0]

    def _heads(self, x: Tensor, rotation: Rotation) -> Sequence[Tensor]:
        """Return `x (N, H)` -> rotated queries `(N, h, d)` and keys `(N, h_kv, d)`, values `(N, h_kv, d)`."""
        products, normed = self._product(x, 0), "q_norm" in self._modules
        if isinstance(products, Tensor):
            *asking, values = (int(getattr(self, name).out_features) // self.size for name in self.products[0])
            joined = products.view(len(x), -1, self.size)
            if not normed:
                both, value = torch.split(joined, [sum(asking), values], 1)
                return *torch.split(rotated(both, rotation), asking, 1), value
            query, key, value = torch.split(joined, [*asking, values], 1)
        else:
            query, key, value = (product.view(len(x), -1, self.size) for product in products)
        if normed:
            block: Any = self
            query, key = block.q_norm(query), block.k_norm(key)
        return rotated(query, rotation), rotated(key, rotation), value


class _GatedMLP(Block):
    products = (("gate_proj", "up_proj"), ("down_proj",))
    is_silu: bool

    def forward(self, x: Tensor) -> Tensor:
        """Return `(..., H)` -> `(..., H)`."""
        products = self._product(x, 0)
        gate, up = products.chunk(2, -1) if isinstance(products, Tensor) else products
        activation: Any = self.act_fn
        down: Any = self.down_proj
        matrix = matrix_of(base_of(down)) if self.is_silu and self not in self.shared.prepacked else None
        if matrix is not None:
            rank, flat = low_rank_of(down), (gate.flatten(0, -2), up.flatten(0, -2))
            first = [] if rank is None else [rank.a.to(matrix.dtype)]
            rows, *inner = gated_products(*flat, [matrix, *first])
            if rank is not None:
                rows.addmm_(inner[0], rank.b.to(matrix.dtype).t(), alpha=rank.scale)
            return rows.view(*x.shape[:-1], -1)
        out = self._product(gated_product(gate, up) if self.is_silu else activation(gate) * up, 1)
        return out if isinstance(out, Tensor) else out[0]


def blocks_of(module: nn.Module) -> list[Block]:
    """Return the blocks below `module` that were replaced."""
    return [part for part in module.modules() if isinstance(part, Block)]


def replace_blocks(module: nn.Module, undo: ExitStack | None = None) -> None:
    """Replace the attentions and gated MLPs below `module` whose output stays the same.

    `undo.close()` restores the module.
    """
    shared = Shared()
    for part in list(module.modules()):
        if isinstance(part, Block) or part._forward_hooks or part._forward_pre_hooks:
            continue
        for kind, adopt in ((_Attention, _adopt_attention), (_GatedMLP, _adopt_mlp)):
            if all(_linear(getattr(part, name, None)) for names in kind.products for name in names):
                twin = copy.copy(part)  # its own attributes, the same parameters
                twin.__class__ = type(type(part).__name__, (kind, type(part)), {"__module__": type(part).__module__})
                twin.shared = shared  # type: ignore[assignment]
                if adopt(part, twin):
                    if undo is not None:
                        undo.callback(put_back, part, type(part), twin.__dict__.keys() - part.__dict__.keys())
                    part.__dict__.update(twin.__dict__)
                    part.__class__ = twin.__class__


def _linear(layer: nn.Module | None) -> bool:
    return layer is not None and type(base_of(layer)) is nn.Linear


@torch.no_grad()
def _adopt_mlp(mlp: Any, twin: Any) -> bool:
    if not callable(getattr(mlp, "act_fn", None)) or "forward" in vars(mlp):
        return False
    weight = mlp.gate_proj.weight
    if mlp.up_proj.weight.shape != weight.shape:
        return False
    x = _example(3, weight.shape[1], weight)
    try:
        twin.is_silu = torch.equal(mlp.act_fn(x), nn.functional.silu(x))
        return close(twin(x), mlp(x))
    except (TypeError, RuntimeError):  # an MLP that is called another way
        return False


@torch.no_grad()
def _adopt_attention(attention: Any, twin: Any) -> bool:
    """Compare the arguments of both for the context, and their outputs; sets the factor and window of `twin`."""
    config, size, layer = (getattr(attention, name, None) for name in ("config", "head_dim", "layer_idx"))
    if config is None or not isinstance(size, int) or not isinstance(layer, int) or "forward" in vars(attention):
        return False
    given = _given(attention, size)
    asked, asked_again = RecordingContext(), RecordingContext()
    try:
        with switched(config):
            wanted = attention(**given, attention_mask=None, oncurve_context=asked)[0]
        twin.size, (twin.factor, twin.window) = size, asked.options
        got = twin(**given, attention_mask=None, oncurve_context=asked_again)[0]
    except (ModelError, TypeError, RuntimeError, AttributeError, ValueError):  # of an unknown attention
        return False
    same = asked.options == asked_again.options and len(asked.tensors) == len(asked_again.tensors)
    if not same or not all(map(close, [got, *asked_again.tensors], [wanted, *asked.tensors])):
        return False
    try:  # an attention that rotates a part of a head takes narrower tables too, and the block does not
        with switched(config):
            attention(**_given(attention, size, size // 2), attention_mask=None, oncurve_context=RecordingContext())
    except (ModelError, TypeError, RuntimeError, AttributeError, ValueError):
        return True
    return False


def _given(attention: Any, size: int, rotated: int | None = None) -> dict[str, Any]:
    """Return hidden states of five tokens, and tables that rotate `rotated` numbers of a head; None: all of them."""
    weight = attention.q_proj.weight
    angles = _example(1, 5 * (rotated or size), weight).view(1, 5, -1)
    return {
        "hidden_states": _example(5, weight.shape[1], weight)[None],
        "position_embeddings": (angles.cos(), (2 * angles).sin()),
    }


class RecordingContext:
    """A context that records its arguments."""

    tensors: tuple[Tensor, ...] = ()
    options: tuple[float, int | None] = (0.0, None)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Record the arguments, and return the queries in reverse order."""
        self.tensors, self.options = (query, key, value), (scale, window)
        return query.flip(0)


def _example(rows: int, columns: int, like: Tensor) -> Tensor:
    numbers = torch.arange(rows * columns, device=like.device).mul(12.9898).sin().mul(43758.5453)
    return (numbers - numbers.floor()).mul(2).sub(1).view(rows, columns).to(like.dtype)


def close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are one up to rounding."""
    limit = 2e-2 if one.dtype.itemsize < 4 else 1e-5
    return one.shape == other.shape and bool((one - other).abs().max() <= limit * other.abs().max())


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
        return close(StraightBody(body, wide, {})(ids, ids, RecordingContext()), run(ids, ids, RecordingContext()))
    except (AttributeError, RuntimeError, TypeError, ValueError):  # parts of another kind or name
        return False
