"""Rotary embeddings whose frequencies depend on how long a row is: one choice for a whole run, the same for every row.

Two kinds of scaling in transformers look at the longest row of the batch:

    longrope   short factors up to `original_max_position_embeddings`, long ones beyond       Phi-3 and Phi-4 128k
    dynamic    the base grows with the length beyond `max_position_embeddings`                NTK-aware scaling

Unchanged, a row's log-probabilities would depend on its neighbours, and the sampler, whose rows grow, would rotate in
another way than the learner. So such a rotation is made for the longest row that a run *may* have, its *reach*: prompt
and `max_new_tokens`. Where no run has set it, the reach is the model's number of positions. The other kinds (default,
linear, llama3, yarn, proportional) rotate a position in one way, and are unchanged.

The kind of a rotation is found by calling it, not by its name, so code that comes with a model is covered too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

_NAMED = re.compile("rotary|rope", re.IGNORECASE)
_UNKNOWN_REACH = 1 << 20
"""For a model without a number of positions: beyond every threshold in use."""


class _Reach:
    """The largest length of a row, whose last token is never fed. A model and its copies share one."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __deepcopy__(self, memo: dict[int, Any]) -> _Reach:
        return self


class _HeldTables(nn.Module):
    """The class put before a held rotation's own class: it rotates every row as a row of `reach` tokens."""

    reach: _Reach

    def forward(self, x: Tensor, position_ids: Tensor, *others: Any, **more: Any) -> Any:
        """Return the tables of `position_ids (..., L)`, made as if the last position of a row of `reach` were among
        them.
        """
        farthest = position_ids.new_full((*position_ids.shape[:-1], 1), max(0, self.reach.tokens - 2))
        tables = super().forward(x, torch.cat([position_ids, farthest], -1), *others, **more)
        return _first(tables, position_ids.shape[-1])


def hold_rotations(module: nn.Module, positions: int | None, undo: ExitStack | None = None) -> None:
    """Fix every rotation below `module` that depends on the length of a row to one reach.

    The reach of a module that has been in a run already is set again.

    positions   the model's number of positions: its reach until `set_reach`; None: not known
    undo        `undo.close()` restores the module
    """
    reach = next((part.reach for part in _held(module)), _Reach(0))
    reach.tokens = 1 + (_UNKNOWN_REACH if positions is None else positions)
    for part in module.modules():
        if not _NAMED.search(type(part).__name__) or isinstance(part, _HeldTables):
            continue
        if any(_depends_on_length(part, kind, reach.tokens - 2) for kind in _kinds(part)):
            if undo is not None:
                undo.callback(put_back, part, type(part), ["reach"])
            part.__class__ = type(type(part).__name__, (_HeldTables, type(part)), {"__module__": type(part).__module__})
            part.reach = reach  # type: ignore[assignment]


def set_reach(module: nn.Module, tokens: int) -> None:
    """Set the longest row of `module` and of its copies to `tokens` tokens, prompt and completion together.

    Nothing changes where no rotation depends on the length.
    """
    for part in _held(module):
        part.reach.tokens = tokens


def reach_of(module: nn.Module) -> int | None:
    """Return the longest row of `module` that its rotation allows, in tokens; None: its rotation depends on no
    length.
    """
    return next((part.reach.tokens for part in _held(module)), None)


def _held(module: nn.Module) -> Iterator[_HeldTables]:
    return (part for part in module.modules() if isinstance(part, _HeldTables))


def put_back(part: nn.Module, kind: type[nn.Module], added: Iterable[str]) -> None:
    """Give a part its own class again, without the attributes that were added."""
    part.__class__ = kind
    for name in added:
        del part.__dict__[name]


def _kinds(part: Any) -> list[dict[str, str]]:
    """Return the keyword arguments for calling a rotation: one for each type of layer where it distinguishes them."""
    kind = getattr(part, "rope_type", None)
    return [{"layer_type": name} for name in kind] if isinstance(kind, dict) else [{}]


@torch.no_grad()
def _depends_on_length(part: nn.Module, kind: dict[str, str], last: int) -> bool:
    """Return whether the first positions are rotated in another way when `last` is among the positions.

    False for a module with another signature than transformers' rotations: it has no tables of positions.
    """
    buffer = next(part.buffers(), torch.empty(0))
    near = torch.arange(4, device=buffer.device)[None]
    far = torch.cat([near, near.new_full((1, 1), last)], -1)
    x = torch.zeros(1, 4, 8, device=buffer.device)
    try:
        alone, together = part(x, near, **kind), _first(part(x, far, **kind), 4)
        part(x, near, **kind)  # a dynamic rotation keeps the longest row: reset it
    except (TypeError, RuntimeError, AttributeError, IndexError, ValueError):
        return False
    return not all(map(torch.equal, _tables(alone), _tables(together)))


def _first(tables: Any, count: int) -> Any:
    """Return the first positions of tables `(..., L, d)`."""
    cut = tuple(table[..., :count, :] for table in _tables(tables))
    return cut[0] if isinstance(tables, Tensor) else cut


def _tables(tables: Any) -> tuple[Tensor, ...]:
    return (tables,) if isinstance(tables, Tensor) else tuple(tables)
