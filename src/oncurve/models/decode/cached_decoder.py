"""The cached decoder: each prompt is computed once per group, then every step adds one token to every row.

Rows may join while others are growing, and leave at any step. Rows that begin together are a *cohort*: their groups'
prefixes, and what each row has written since, which is equally long for all of them. So a cohort's attention is two
calls whatever its rows. All rows of a group attend to the group's prefix, which is stored once and read once, and each
row to its own suffix. Only attention depends on cohorts; every other layer sees all rows one after another.

The two become the whole. A softmax over keys A ∪ B is a mixture of the softmaxes over A and over B, weighted by their
shares of the denominator. With lse the log-sum-exp of the scores:

    out = w · out_A + (1 - w) · out_B,    w = exp(lse_A) / (exp(lse_A) + exp(lse_B)) = σ(lse_A - lse_B)
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from oncurve.models.attention.packed_rows import RowLayout
from oncurve.models.causal import Head
from oncurve.models.decode.prefill import Prefixes, Run, prefill

_FIRST_CAPACITY = 64


class _Suffix:
    """Keys or values of what the rows have written: `(n, h_kv, capacity, d)`, capacity doubling up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stored = torch.empty(0)

    def append(self, new: Tensor, step: int) -> Tensor:
        """Write `new (n, h_kv, d)` at `step`; all that is written, `(n, h_kv, step + 1, d)`."""
        if step >= (self._stored.shape[2] if step else 0):
            capacity = min(max(2 * step, _FIRST_CAPACITY), self._limit)
            grown = new.new_empty(*new.shape[:2], capacity, new.shape[2])
            if step:
                grown[:, :, :step] = self._stored
            self._stored = grown
        self._stored[:, :, step] = new
        return self._stored[:, :, : step + 1]

    def keep(self, rows: Tensor, step: int) -> None:
        """Go on with these rows."""
        if step:
            kept = self._stored.new_empty(len(rows), *self._stored.shape[1:])
            kept[:, :, :step] = self._stored[:, :, :step].index_select(0, rows)
            self._stored = kept


class Cohort:
    """Rows that began together; `groups (n,)` is the prefix of each, in ascending order."""

    def __init__(self, prefixes: Prefixes, groups: Tensor, limit: int) -> None:
        self.step = 0
        self._suffixes = defaultdict[int, tuple[_Suffix, _Suffix]](lambda: (_Suffix(limit), _Suffix(limit)))
        self._hold(prefixes, groups)

    def _hold(self, prefixes: Prefixes, groups: Tensor) -> None:
        """Find the places of the rows, by group, in `(M, G)`, G the rows of the largest group."""
        self.rows, self._prefixes, self._groups = len(groups), prefixes, groups
        self._layout = RowLayout(torch.bincount(groups, minlength=len(prefixes.lengths)))
        self._shortest = int(prefixes.lengths.min())
        self._masks: dict[int | None, Tensor | None] = {}

    def advance(self) -> None:
        """The token just run is written in every layer."""
        self.step += 1
        self._masks = {window: mask for window, mask in self._masks.items() if window is None}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer; N is the number of this cohort's rows."""
        suffix_key, suffix_value = self._suffixes[layer]
        keys, values = suffix_key.append(key, self.step), suffix_value.append(value, self.step)
        first = 0 if window is None else max(0, self.step + 1 - window)
        kv_heads = key.shape[1]
        asked = query.view(self.rows, kv_heads, -1, query.shape[2])
        own, own_lse = attend_part(asked, keys[:, :, first:], values[:, :, first:], scale)
        own = own.transpose(1, 2)  # (n, s, h_kv, d): the order in memory of what attention gives
        prefix_key, prefix_value = self._prefixes.layers[layer]
        # (M, h_kv, G · h / h_kv, d): all queries of the same keys become one matrix.
        copies = self._layout.longest
        groups = self._layout.pad(query).view(-1, copies, *asked.shape[1:]).transpose(1, 2).flatten(2, 3)
        shared = attend_part(groups, prefix_key, prefix_value, scale, self._mask(window, query))
        by_row = (x.transpose(1, 2).view(len(groups), copies, -1, kv_heads, *x.shape[3:]) for x in shared)
        prefix, prefix_lse = map(self._layout.unpad, by_row)  # (n, s, h_kv, ...)
        return merge_softmax(prefix, prefix_lse, own, own_lse.transpose(1, 2)).transpose(1, 2).flatten(1, 2)

    def _mask(self, window: int | None, like: Tensor) -> Tensor | None:
        """Return `(M, 1, 1, P)` to add to the prefix scores: prompts shorter than P, keys out of the window."""
        longest = self._prefixes.longest
        if window is not None and window > longest + self.step:
            window = None
        if window is None and self._shortest == longest:
            return None
        if window not in self._masks:
            lengths = self._prefixes.lengths[:, None]
            position = torch.arange(longest, device=like.device)[None, :]
            hidden = position >= lengths
            if window is not None:
                hidden = hidden | (lengths + self.step - position >= window)
            lowest = torch.finfo(like.dtype).min
            self._masks[window] = like.new_zeros(hidden.shape).masked_fill_(hidden, lowest)[:, None, None]
        return self._masks[window]

    def keep(self, rows: Tensor) -> None:
        """Go on with these of the rows, at least one; prefixes of groups without rows are freed."""
        if len(rows) == self.rows:
            return
        for suffix in chain(*self._suffixes.values()):
            suffix.keep(rows, self.step)
        kept, groups = torch.unique_consecutive(self._groups[rows], return_inverse=True)
        self._hold(self._prefixes if len(kept) == len(self._prefixes.lengths) else self._prefixes.of(kept), groups)


class CachedDecoder:
    """A `Decoder` with a cache, which is the context of its rows' attention. Never records a gradient.

    logits   `(n, H)` -> `(n, V)`, with the weights as they are now
    """

    def __init__(self, run: Run, logits: Head, max_new_tokens: int, device: torch.device) -> None:
        self._run, self.logits, self._limit = run, logits, max_new_tokens
        self._cohorts: list[Cohort] = []
        self._positions = torch.empty(0, dtype=torch.int64, device=device)

    @torch.no_grad()
    def join(self, prompts: Sequence[Tensor], copies: int) -> Tensor:
        """Prefill further groups; a cohort of their own."""
        device = self._positions.device
        hidden, prefixes = prefill(self._run, prompts, device)
        groups = torch.arange(len(prompts), device=device).repeat_interleave(copies)
        self._cohorts.append(Cohort(prefixes, groups, self._limit))
        self._positions = torch.cat([self._positions, prefixes.lengths[groups]])
        return hidden

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """Return one token per row: the hidden states that predict the next."""
        hidden = self._run(ids.to(self._positions.device), self._positions, self)
        for cohort in self._cohorts:
            cohort.advance()
        self._positions = self._positions + 1
        return hidden

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer, one cohort after another; N is the number of rows."""
        if len(self._cohorts) == 1:
            return self._cohorts[0].attend(layer, query, key, value, scale, window)
        sizes = [cohort.rows for cohort in self._cohorts]
        parts = zip(self._cohorts, *(torch.split(x, sizes) for x in (query, key, value)), strict=True)
        return torch.cat([cohort.attend(layer, *part, scale, window) for cohort, *part in parts])

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        if len(rows) == len(self._positions):
            return
        rows = rows.to(self._positions.device)
        start, going_on = 0, []
        for cohort in self._cohorts:
            end = start + cohort.rows
            kept = rows[(rows >= start) & (rows < end)] - start
            if len(kept):
                cohort.keep(kept)
                going_on.append(cohort)
            start = end
        self._cohorts, self._positions = going_on, self._positions[rows]


def attend_part(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention `(b, h, q, d_v)` of `query (b, h, q, d)` over `key (b, h, k, d)`, and its log-sum-exp `(b, h, q)`.

    `mask (b, 1, 1, k)` is added to the scores. It must be finite (the lowest number of its type, not -inf), or a query
    whose keys are all masked would be NaN; with it `merge_softmax` gives such a part a weight of 0. The log-sum-exp is
    float32 at least. Without a gradient.
    """
    if query.device.type == "cpu" and value.shape[-1] == query.shape[-1]:
        # The function below scaled_dot_product_attention, which drops the log-sum-exp. One call instead of two
        # products and a softmax: half their time in bf16, where tiny batched products go through oneDNN one by one, and
        # no more in float32 (measured at 2 to 28 queries over 10 to 500 keys).
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=mask, scale=scale
        )
        return out, lse
    scores = torch.matmul(query * scale, key.transpose(2, 3))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, -1)
    return torch.matmul((scores - lse[..., None]).exp_().to(value.dtype), value), lse


def merge_softmax(one: Tensor, lse_of_one: Tensor, other: Tensor, lse_of_other: Tensor) -> Tensor:
    """Return two parts `(..., d)` with log-sum-exps `(...)` as attention over both, `(..., d)`."""
    share = torch.sigmoid(lse_of_one - lse_of_other)[..., None]
    return torch.lerp(other, one, share.to(one.dtype))
