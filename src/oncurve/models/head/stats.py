"""Token statistics `(b, T)` from hidden states, chunk by chunk: `(B, T, V)` logits never exist.

Where the head is one matrix, and no statistic needs whole distributions, `linear_logprobs` computes them by blocks of
the vocabulary. Else the head is applied to a chunk of completion tokens at a time. Where a gradient is wanted and all
logits take more than `KEPT_BYTES`, those of a chunk are freed after the forward and computed again in the backward
(activation checkpointing of the head alone). Memory is bounded for any B, T and V.

Where the batch has kept sets of truncated sampling, every statistic is of the distribution renormalised over them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oncurve.kl import full_kl_from_logits
from oncurve.models.causal import CausalModel, Head
from oncurve.models.head.kept_sets import NEGLIGIBLE, KeptSets
from oncurve.models.head.linear_logprobs import linear_logprobs
from oncurve.ops import entropy, entropy_of_logprobs, in_rows, token_logprobs_and_table
from oncurve.types import TokenStats, TrainBatch, sent

CHUNK_BYTES = 24 * 2**20
"""The float32 logits of one chunk on the CPU. From 32 MiB on, glibc returns a freed temporary to the system, and every
page of the next one is faulted in again."""

ACCELERATOR_CHUNK_BYTES = 256 * 2**20
"""The same on any other device, which caches its memory: with a vocabulary of 150,000 a product has 440 rows, so that
reading the head's weights does not dominate."""

KEPT_BYTES = 64 * 2**20
"""Up to this many bytes of float32 logits in all (or one chunk) are kept for the backward: computing them again would
cost a second product and save little."""

STAT_NAMES = frozenset({"entropy", "full_kl"})
"""The statistics other than the log-probabilities."""

OBSERVABLE = frozenset({"entropy"})
"""Statistics that can be computed without a gradient."""

_VOCABULARY: WeakKeyDictionary[CausalModel, int] = WeakKeyDictionary()


def token_stats(
    model: CausalModel,
    batch: TrainBatch,
    needs: frozenset[str] = frozenset(),
    temperature: float = 1.0,
    ref_head: Head | None = None,
    observe: frozenset[str] = frozenset(),
    read: Callable[[Tensor], Tensor] | None = None,
) -> TokenStats:
    """Return log-probabilities of the completion tokens under `softmax(logits / temperature)`, and other statistics.

    Args:
        model: the policy being trained, or a reference under `torch.no_grad`.
        batch: `completion_ids (b, T)`, `lengths (b,)`, `group_ids (b,)` and `prompts`; for `full_kl` also
            `ref_hidden (N, H_ref)`; `kept_sizes` and `kept_ids` of truncated sampling.
        needs: any of `"entropy"` (of the distribution at each token, nats) and `"full_kl"` (KL[π_θ || π_ref] over the
            whole vocabulary, nats).
        temperature: the divisor of the logits in sampling.
        ref_head: the reference's head, from `batch.ref_hidden` to logits; needed by `"full_kl"`.
        observe: statistics without a gradient, which is cheaper: `"entropy"`. Those also in `needs` have a gradient.
        read: from the hidden states `(N, H)` of the same forward pass to `(b, T)` values; None: no values.

    Returns:
        TokenStats of `(b, T)`, float32 at least, 0 beyond each row's length; differentiable (once) unless only observed
        or under `no_grad`.

    Raises:
        ValueError: an unknown statistic, or `full_kl` without `ref_head` and `batch.ref_hidden`.
    """
    for asked, known in ((needs, STAT_NAMES), (observe, OBSERVABLE)):
        if unknown := asked - known:
            raise ValueError(
                f"no such token statistic: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}"
            )
    if "full_kl" in needs and (ref_head is None or batch.ref_hidden is None):
        raise ValueError("the full KL needs the reference's hidden states: batch.ref_hidden and ref_head")
    hidden = model.completion_hidden(batch.prompts, batch.group_ids, batch.completion_ids, batch.lengths)
    values = None if read is None else read(hidden)
    places = batch.slots()
    slots, ids = sent([places, batch.completion_ids.flatten()[places]], hidden.device)
    shape, kept_sets = (batch.size, batch.completion_ids.shape[1]), KeptSets.of(batch, places, hidden.device)
    names = [name for name in ("entropy", "full_kl") if name in needs | observe]
    matrix = model.head_matrix() if "full_kl" not in needs else None
    if matrix is not None:
        logprobs, found = linear_logprobs(
            hidden, matrix, ids, temperature, with_entropy="entropy" in names, kept=kept_sets
        )
        measured = [logprobs] if found is None else [logprobs, found if "entropy" in needs else found.detach()]
    else:
        ref_hidden = batch.ref_hidden if "full_kl" in needs else None
        measure = _Measure(model.logits, needs, tuple(names), temperature, ref_head)
        size, kept = _sizes(model, hidden)
        forget = torch.is_grad_enabled() and hidden.shape[0] > kept
        measured = measure.in_chunks(hidden, ids, ref_hidden, kept_sets, size, forget)
    columns = zip(["logprobs", *names], measured, strict=True)
    return TokenStats(**{name: in_rows(column, slots, shape) for name, column in columns}, values=values)


@dataclass(frozen=True)
class _Measure:
    """From a chunk's hidden states `(n, H)` and ids `(n,)` to its log-probs `(n,)`, then `columns`, `(n,)` each."""

    head: Head
    needs: frozenset[str]
    columns: tuple[str, ...]
    temperature: float
    ref_head: Head | None

    def __call__(
        self, hidden: Tensor, ids: Tensor, ref_hidden: Tensor | None, sets: KeptSets | None
    ) -> tuple[Tensor, ...]:
        logits = _kept(self.head(hidden), sets, self.temperature)
        logprobs, table = token_logprobs_and_table(logits, ids, self.temperature)
        return logprobs, *(self._column(name, logits, table, ref_hidden, sets) for name in self.columns)

    def _column(
        self, name: str, logits: Tensor, table: Tensor, ref_hidden: Tensor | None, sets: KeptSets | None
    ) -> Tensor:
        if name == "entropy":
            return entropy(logits, self.temperature) if name in self.needs else entropy_of_logprobs(table)
        assert self.ref_head is not None  # token_stats has checked
        assert ref_hidden is not None
        with torch.no_grad():
            ref_logits = _kept(self.ref_head(ref_hidden), sets, self.temperature)
        return full_kl_from_logits(logits, ref_logits, self.temperature)

    def in_chunks(
        self, hidden: Tensor, ids: Tensor, ref_hidden: Tensor | None, kept: KeptSets | None, size: int, forget: bool
    ) -> list[Tensor]:
        """Return this over chunks of `size` tokens, each column concatenated to `(N,)`; `forget`: logits are made
        again in the backward.
        """
        run: Any = partial(checkpoint, self, use_reentrant=False, preserve_rng_state=False) if forget else self
        pieces = []
        for start in range(0, max(hidden.shape[0], 1), size):
            rows = slice(start, start + size)
            reference = None if ref_hidden is None else ref_hidden[rows].to(hidden.device)
            sets = None if kept is None else kept.of_tokens(start, start + size)
            pieces.append(run(hidden[rows], ids[rows], reference, sets))
        return [torch.cat(column) for column in zip(*pieces, strict=True)]


def _kept(logits: Tensor, sets: KeptSets | None, temperature: float) -> Tensor:
    """Return logits `(n, V)` in which tokens that are not kept are negligible."""
    if sets is None:
        return logits
    inside = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    outside = sets.leave_out(inside, True, sets.places([(0, logits.shape[1])])[0])
    likeliest = logits.detach().masked_fill(outside, -torch.inf).amax(1, keepdim=True)
    return torch.where(outside, likeliest + NEGLIGIBLE * temperature, logits)


def _sizes(model: CausalModel, hidden: Tensor) -> tuple[int, int]:
    """Return the number of tokens whose float32 logits make a chunk, and of those kept for the backward."""
    if hidden.shape[0] and model not in _VOCABULARY:
        with torch.no_grad():  # one row through the head: costly where the vocabulary is large, so once per model
            _VOCABULARY[model] = model.logits(hidden[:1]).shape[-1]
    row_bytes = 4 * _VOCABULARY.get(model, 1)
    chunk_bytes = CHUNK_BYTES if hidden.device.type == "cpu" else ACCELERATOR_CHUNK_BYTES
    return max(1, chunk_bytes // row_bytes), max(1, max(chunk_bytes, KEPT_BYTES) // row_bytes)
