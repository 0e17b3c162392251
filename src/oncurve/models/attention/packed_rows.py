"""Packed, prefix-shared attention: each prompt once per group, then its completions, and padding in attention only.

All tokens are in one flat row: M prompts one after another, then b completions one after another. Linear layers and
norms see exactly the tokens that exist. Only attention needs rows, so only there they are padded:

    prompts       (M, P)      causal among themselves
    completions   (b, C)      keys: the group's prompt (P), then the row's own completion up to the query: P + C

Key p < P is at position p of prompt g; key P + s is completion token s, at position P_g + s. Query t is at P_g + t.
Allowed: p < P_g for the prefix, s <= t for the suffix, and a distance below the window where there is one. Padding to
the right of a completion needs no mask: it is in the future of every token that exists. Its own outputs are dropped.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.machine.in_order import differentiated_in_order
from oncurve.models.attention.cpu_kernel import fits, rows_attention
from oncurve.types import sent


class _Gather(torch.autograd.Function):
    """`(slots, ...)` -> `(N, ...)`, no slot twice. Its backward copies where that of `index_select` would add."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.slots = x.shape[0]
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.slots, *grad.shape[1:]).index_copy_(0, index, grad), None


class RowLayout:
    """R ragged rows, one after another in N tokens, and their padded form `(R, L)`, L the longest."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        self.count = int(lengths.shape[0])
        self.longest = int(lengths.max()) if self.count else 0
        self.uniform = self.count == 0 or int(lengths.min()) == self.longest
        exists = torch.arange(self.longest, device=lengths.device)[None, :] < lengths[:, None]
        self.slots = exists.flatten().nonzero()[:, 0]
        """`(N,)`: slot of each token in the flattened padded form."""

    def pad(self, x: Tensor) -> Tensor:
        """Return `(N, ...)` -> `(R, L, ...)`; a view where no row is shorter than another."""
        if not self.uniform:
            x = x.new_zeros(self.count * self.longest, *x.shape[1:]).index_copy_(0, self.slots, x)
        return x.reshape(self.count, self.longest, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """Return `(R, L, ...)` -> `(N, ...)`."""
        x = x.reshape(self.count * self.longest, *x.shape[2:])
        if self.uniform:
            return x
        if not torch.is_grad_enabled():  # a decode step unpads few rows: a Function costs more
            return x.index_select(0, self.slots)
        picked: Tensor = _Gather.apply(x, self.slots)  # type: ignore[no-untyped-call]
        return picked

    def positions(self) -> Tensor:
        """Return `(N,)`: each token's position in its row."""
        return self.slots % max(self.longest, 1)

    def row_of_token(self) -> Tensor:
        """Return `(N,)`: each token's row."""
        return self.slots // max(self.longest, 1)


def sdpa(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Attention over `(R, L, h, d)`, keys and values with h_kv heads; causal where there is no `mask`."""
    shared = query.shape[2] // key.shape[2]
    grouped = shared > 1 and query.device.type == "cpu"
    if shared > 1 and not grouped:  # elsewhere a mask together with grouped heads falls back to the slowest kernel
        key, value = key.repeat_interleave(shared, 2), value.repeat_interleave(shared, 2)

    def attend(*inputs: Tensor) -> Tensor:
        asked, keys, values = (x.transpose(1, 2) for x in inputs)
        return nn.functional.scaled_dot_product_attention(
            asked, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        ).transpose(1, 2)

    return differentiated_in_order(attend, query, key, value)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores: 0 where allowed, -inf elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))


def causal(start: int, end: int, window: int | None, like: Tensor) -> Tensor:
    """Return a mask `(end - start, end)` to add to the scores of tokens from `start` on, within their window."""
    position = torch.arange(end, device=like.device)
    distance = position[start:, None] - position[None, :]
    allowed = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return additive(allowed, like.dtype)


class PromptAttention:
    """Prompts attend to themselves: causal, within the window where it is shorter than the prompts."""

    def __init__(self, rows: RowLayout) -> None:
        self.rows = rows
        self._masks: dict[int, Tensor] = {}

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs `(N, h, d_v)`, and the padded keys and values `(M, P, h_kv, d)`."""
        padded_key, padded_value = self.rows.pad(key), self.rows.pad(value)
        mask = self._mask(window, query)
        asked = self.rows.pad(query)
        if fits(query, value):
            nothing = padded_key.new_empty(1, 0, *padded_key.shape[2:])
            no_prefix = torch.zeros(self.rows.count, dtype=torch.int64)
            both = (nothing, padded_key), (nothing, padded_value)
            attended = rows_attention(asked, *both, no_prefix, mask, scale)
        else:
            attended = sdpa(asked, padded_key, padded_value, scale, mask)
        return self.rows.unpad(attended), padded_key, padded_value

    def _mask(self, window: int | None, like: Tensor) -> Tensor | None:
        if window is None or window >= self.rows.longest:
            return None
        if window not in self._masks:
            self._masks[window] = causal(0, self.rows.longest, window, like)[None, None]
        return self._masks[window]


class PackedContext:
    """Attention of the packed training mode, and the plan of its flat row of tokens.

    ids, positions (N,)   what the model is run on, on `device`
    predictors     (N',)  which of the N hidden states predict each completion token, rows one after another

    The plan is made on the host and sent in one copy, so that a device is not waited for.
    """

    def __init__(
        self,
        prompts: Sequence[Tensor],
        group_ids: Tensor,
        completion_ids: Tensor,
        lengths: Tensor,
        device: torch.device,
    ) -> None:
        self._groups, completion_ids, lengths = group_ids.cpu(), completion_ids.cpu(), lengths.cpu()
        # A completion's last token predicts nothing, so it is not run.
        self._prompts = RowLayout(torch.tensor([prompt.shape[0] for prompt in prompts]))
        self._completions = RowLayout((lengths - 1).clamp(min=0))
        self._prompt_attention = PromptAttention(self._prompts)
        self._prompt_tokens = int(self._prompts.lengths.sum())
        self._copies = _equal_copies(self._groups, self._prompts.count)
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}
        self.ids, self.positions = self._layout([prompt.cpu() for prompt in prompts], completion_ids)
        self.predictors = self._find_predictors(completion_ids.shape[1], lengths)
        parts = self._parts()
        tables = [(vars(part), name) for part in parts for name, value in vars(part).items() if torch.is_tensor(value)]
        arrived = sent([attributes[name] for attributes, name in tables], device)
        for (attributes, name), table in zip(tables, arrived, strict=True):
            attributes[name] = table

    def _parts(self) -> list[object]:
        """Return the objects whose tensors are sent to the device."""
        return [self, self._prompts, self._completions]

    def _layout(self, prompts: Sequence[Tensor], completion_ids: Tensor) -> tuple[Tensor, Tensor]:
        rows, steps = self._completions.row_of_token(), self._completions.positions()
        ids = torch.cat([*prompts, completion_ids[rows, steps]])
        after_prompts = self._prompts.lengths[self._groups[rows]] + steps
        return ids, torch.cat([self._prompts.positions(), after_prompts])

    def _find_predictors(self, width: int, lengths: Tensor) -> Tensor:
        prompt_ends = self._prompts.lengths.cumsum(0) - 1
        starts = self._prompt_tokens + self._completions.lengths.cumsum(0) - self._completions.lengths
        steps = torch.arange(width, device=lengths.device)[None, :]
        table = torch.where(steps == 0, prompt_ends[self._groups][:, None], starts[:, None] + steps - 1)
        return table[steps < lengths[:, None]]

    def predicting(self, hidden: Tensor) -> Tensor:
        """Return the hidden states that predict each completion token: of all tokens `(N, H)` -> `(N', H)`."""
        return hidden.index_select(0, self.predictors)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer. Stores nothing, so any layer may be run again."""
        first = self._prompt_tokens
        prompts_out, prefix_key, prefix_value = self._prompt_attention.attend(
            query[:first], key[:first], value[:first], scale, window
        )
        if self._completions.longest == 0:
            return prompts_out
        asked, own_key, own_value = (self._completions.pad(x[first:]) for x in (query, key, value))
        mask = self._mask(window, query.dtype)
        if fits(query, value):
            both = (prefix_key, own_key), (prefix_value, own_value)
            attended = rows_attention(asked, *both, self._groups, mask, scale)
        else:
            keys, values = self._after_prefix(prefix_key, own_key), self._after_prefix(prefix_value, own_value)
            attended = sdpa(asked, keys, values, scale, mask)
        return torch.cat([prompts_out, self._completions.unpad(attended)])

    def _after_prefix(self, prefix: Tensor, suffix: Tensor) -> Tensor:
        """Return `(M, P, h_kv, d)` and `(b, C, h_kv, d)` -> `(b, P + C, h_kv, d)`: each row after its group's
        prefix.
        """
        if self._copies is None:
            return torch.cat([prefix.index_select(0, self._groups), suffix], 1)
        groups, copies = self._prompts.count, self._copies
        repeated = prefix[:, None].expand(groups, copies, *prefix.shape[1:])
        return torch.cat([repeated, suffix.view(groups, copies, *suffix.shape[1:])], 2).flatten(0, 1)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return `(1 | b, 1, C, P + C)`: one for all rows where all prompts are equally long."""
        longest, width = self._prompts.longest, self._completions.longest
        if window is not None and window >= longest + width:
            window = None
        if (window, dtype) not in self._masks:
            lengths = self._prompts.lengths
            lengths = lengths[:1] if self._prompts.uniform else lengths[self._groups]
            slots = torch.arange(longest, device=lengths.device)
            steps = torch.arange(width, device=lengths.device)
            prefix = (slots[None, :] < lengths[:, None])[:, None, :].expand(-1, width, -1)
            suffix = (steps[None, :] <= steps[:, None]).expand(len(lengths), -1, -1)
            if window is not None:
                distance = lengths[:, None, None] + steps[None, :, None] - slots[None, None, :]
                prefix = prefix & (distance < window)
                suffix = suffix & (steps[:, None] - steps[None, :] < window)
            self._masks[window, dtype] = additive(torch.cat([prefix, suffix], 2), dtype)[:, None]
        return self._masks[window, dtype]


def _equal_copies(group_ids: Tensor, groups: int) -> int | None:
    """G where the rows are G of group 0, then G of group 1, and so on; None where they are not."""
    copies, rest = divmod(len(group_ids), groups)
    if rest or copies == 0:
        return None
    regular = torch.arange(groups, device=group_ids.device).repeat_interleave(copies)
    return copies if torch.equal(group_ids, regular) else None
