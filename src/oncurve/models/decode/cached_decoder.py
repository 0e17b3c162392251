"""The cached decoder: each prompt is computed once per group, then every step adds one token to every row.

prefill.py   prompts in, hidden states and prefixes out       batched_cache.py   attention of rows that are decoded
attention/merge.py   attention over prefix and suffix apart

Rows may join while others are growing, and leave at any step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oncurve.models.causal import Head
from oncurve.models.decode.batched_cache import Cohort
from oncurve.models.decode.prefill import Run, prefill


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
