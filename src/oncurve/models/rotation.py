"""Rotary embeddings whose frequencies depend on how long a row is: one choice for a whole run, the same for every row.

Two kinds of scaling in transformers look at the longest row of the batch:

    longrope   short factors up to `original_max_position_embeddings`, long ones beyond       Phi-3 and Phi-4 128k
    dynamic    the base grows with the length beyond `max_position_embeddings`                NTK-aware scaling

Left alone, a row's log-probabilities would depend on its neighbours, and the sampler, whose rows grow, would rotate
otherwise than the learner. So such a rotation is made for the longest row that a run *may* have, its *reach*: prompt
and `max_new_tokens`. Where no run has said what that is, the reach is all that the model has positions for. The other
kinds (default, linear, llama3, yarn, proportional) rotate a position in one way, and stay as they are.

Which kind a rotation is comes from what it does, not from its name, so code that comes with a model is covered too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["hold_rotations", "reach_of", "set_reach"]

_NAMED = re.compile("rotary|rope", re.IGNORECASE)
_UNKNOWN_REACH = 1 << 20
"""Where a model does not say how many positions it has: beyond every threshold that is in use."""


class _Reach:
    """The most tokens that a row may have, the last of which is never fed. A model and its copies share one."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __deepcopy__(self, memo: dict[int, Any]) -> _Reach:
        return self


class _Held(nn.Module):
    """What `hold_rotations` puts before a rotation's own class: every row is rotated as one of `reach` tokens."""

    reach: _Reach

    def forward(self, x: Tensor, position_ids: Tensor, *others: Any, **more: Any) -> Any:
        """The tables of `position_ids (..., L)`, made as if the last position of a row of `reach` were among them."""
        farthest = position_ids.new_full((*position_ids.shape[:-1], 1), max(0, self.reach.tokens - 2))
        tables = super().forward(x, torch.cat([position_ids, farthest], -1), *others, **more)
        return _first(tables, position_ids.shape[-1])


def hold_rotations(module: nn.Module, positions: int | None, undo: ExitStack | None = None) -> int:
    """Hold every rotation below `module` that depends on the length of a row at one reach; returns how many are new.

    Of a module that has been in a run already, the reach begins again.

    positions   what the model has: its reach until `set_reach` says another; None: not known
    undo        `undo.close()` puts back what was there
    """
    reach = next((part.reach for part in _held(module)), _Reach(0))
    reach.tokens = 1 + (_UNKNOWN_REACH if positions is None else positions)
    rotations = [
        part for part in module.modules() if _NAMED.search(type(part).__name__) and not isinstance(part, _Held)
    ]
    count = 0
    for part in rotations:
        if any(_depends_on_length(part, kind, reach.tokens - 2) for kind in _kinds(part)):
            if undo is not None:
                undo.callback(_put_back, part, type(part))
            part.__class__ = type(type(part).__name__, (_Held, type(part)), {"__module__": type(part).__module__})
            part.reach = reach  # type: ignore[assignment]
            count += 1
    return count


def set_reach(module: nn.Module, tokens: int) -> None:
    """From now on the longest row of `module`, and of its copies, has `tokens` tokens, prompt and completion together.

    Nothing changes where no rotation depends on it.
    """
    for part in _held(module):
        part.reach.tokens = tokens


def reach_of(module: nn.Module) -> int | None:
    """The most tokens that a row of `module` may have for the sake of its rotation; None: it depends on no length."""
    return next((part.reach.tokens for part in _held(module)), None)


def _held(module: nn.Module) -> Iterator[_Held]:
    return (part for part in module.modules() if isinstance(part, _Held))


def _put_back(part: nn.Module, kind: type[nn.Module]) -> None:
    part.__class__ = kind
    del part.__dict__["reach"]


def _kinds(part: Any) -> list[dict[str, str]]:
    """With which keyword arguments a rotation may be called: one for each type of layer where it tells them apart."""
    kind = getattr(part, "rope_type", None)
    return [{"layer_type": name} for name in kind] if isinstance(kind, dict) else [{}]


@torch.no_grad()
def _depends_on_length(part: nn.Module, kind: dict[str, str], last: int) -> bool:
    """Whether the first positions are rotated in another way where `last` is among them.

    False for what is called in another way than transformers' rotations are: it has no tables of positions.
    """
    buffer = next(part.buffers(), torch.empty(0))
    near = torch.arange(4, device=buffer.device)[None]
    far = torch.cat([near, near.new_full((1, 1), last)], -1)
    x = torch.zeros(1, 4, 8, device=buffer.device)
    try:
        alone, beside = part(x, near, **kind), _first(part(x, far, **kind), 4)
        part(x, near, **kind)  # a dynamic rotation remembers the longest row: forget it
    except (TypeError, RuntimeError, AttributeError, IndexError, ValueError):
        return False
    return not all(map(torch.equal, _tables(alone), _tables(beside)))


def _first(tables: Any, count: int) -> Any:
    """The first positions of tables `(..., L, d)`."""
    cut = tuple(table[..., :count, :] for table in _tables(tables))
    return cut[0] if isinstance(tables, Tensor) else cut


def _tables(tables: Any) -> tuple[Tensor, ...]:
    return (tables,) if isinstance(tables, Tensor) else tuple(tables)
