"""The cached decoder: each prompt is computed once per group, then every step adds one token to every row.

prefill.py   prompts in, hidden states and prefixes out       batched_cache.py   attention of rows that are decoded
attention/merge.py   attention over prefix and suffix apart

Rows may join while others are growing, and leave at any step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oncurve.models.causal import Head, check_decoder
from oncurve.models.decode.batched_cache import Cohort, DecodeContext
from oncurve.models.decode.prefill import Run, prefill


class CachedDecoder:
    """A `Decoder` with a cache. Never records a gradient.

    logits   `(n, H)` -> `(n, V)`, with the weights as they are now
    """

    def __init__(
        self,
        run: Run,
        prompts: Sequence[Tensor],
        copies: Sequence[int],
        max_new_tokens: int,
        device: torch.device,
        logits: Head,
    ) -> None:
        self._run = run
        self.logits = logits
        self._limit = max_new_tokens
        self._cohorts: list[Cohort] = []
        self._group_count = 0
        self.groups = self._positions = torch.empty(0, dtype=torch.int64, device=device)
        self.first_hidden = self.join(prompts, copies)

    @torch.no_grad()
    def join(self, prompts: Sequence[Tensor], copies: Sequence[int]) -> Tensor:
        """Prefill further groups; a cohort of their own."""
        check_decoder(prompts, copies)
        device = self.groups.device
        first_hidden, prefixes = prefill(self._run, prompts, device)
        repeats = torch.tensor(list(copies), device=device)
        groups = torch.arange(len(prompts), device=device).repeat_interleave(repeats)
        self._cohorts.append(Cohort(prefixes, groups, self._limit))
        self._context = DecodeContext(self._cohorts)
        self.groups = torch.cat([self.groups, groups + self._group_count])
        self._positions = torch.cat([self._positions, prefixes.lengths[groups]])
        self._group_count += len(prompts)
        return first_hidden

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """Return one token per row: the hidden states that predict the next."""
        hidden = self._run(ids.to(self._positions.device), self._positions, self._context)
        for cohort in self._cohorts:
            cohort.advance()
        self._positions = self._positions + 1
        return hidden

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        if len(rows) == len(self.groups):
            return
        rows = rows.to(self.groups.device)
        start, going_on = 0, []
        for cohort in self._cohorts:
            end = start + cohort.rows
            kept = rows[(rows >= start) & (rows < end)] - start
            if len(kept):
                cohort.keep(kept)
                going_on.append(cohort)
            start = end
        self._cohorts = going_on
        self._context = DecodeContext(self._cohorts)
        self.groups, self._positions = self.groups[rows], self._positions[rows]
