"""From hidden states to `(b, T)` streams, chunk by chunk: `(B, T, V)` logits never exist.

The head is applied to a chunk of completion tokens at a time. Where a gradient is wanted and there is more than one
chunk, a chunk's logits are forgotten after the forward and made again in the backward (activation checkpointing of the
head alone): memory is that of one chunk whatever B, T and V are.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oncurve.kl import full_kl_from_logits
from oncurve.models.causal import CausalModel, Head
from oncurve.ops import entropy, token_logprobs
from oncurve.types import Streams, TrainBatch

__all__ = ["CHUNK_BYTES", "STREAM_NAMES", "token_streams"]

CHUNK_BYTES = 64 * 2**20
"""The float32 logits of one chunk: large enough for full-speed matrix products, small beside any model."""

STREAM_NAMES = frozenset({"entropy", "full_kl"})
"""What can be asked for beside the log-probabilities."""

_VOCABULARY: WeakKeyDictionary[CausalModel, int] = WeakKeyDictionary()


def token_streams(
    model: CausalModel,
    batch: TrainBatch,
    needs: frozenset[str] = frozenset(),
    temperature: float = 1.0,
    ref_head: Head | None = None,
    chunk_tokens: int | None = None,
) -> Streams:
    """Log-probabilities of the completion tokens under `softmax(logits / temperature)`, and what else is needed.

    Args:
        model: the policy being trained, or a reference under `torch.no_grad`.
        batch: `completion_ids (b, T)`, `lengths (b,)`, `group_ids (b,)` and `prompts`; for `full_kl` also
            `ref_hidden (N, H_ref)`.
        needs: any of `"entropy"` (of the distribution at each token, nats) and `"full_kl"` (KL[π_θ || π_ref] over the
            whole vocabulary, nats).
        temperature: what the sampler divided the logits by.
        ref_head: makes the reference's logits from `batch.ref_hidden`; needed by `"full_kl"`.
        chunk_tokens: tokens of one chunk; by default as many as fill `CHUNK_BYTES`.

    Returns:
        Streams of `(b, T)`, float32 at least, 0 beyond each row's length; differentiable unless under `no_grad`.

    Raises:
        ValueError: an unknown need, or `full_kl` without `ref_head` and `batch.ref_hidden`.
    """
    if unknown := needs - STREAM_NAMES:
        raise ValueError(f"no such stream: {', '.join(sorted(unknown))}; there are {', '.join(sorted(STREAM_NAMES))}")
    if "full_kl" in needs and (ref_head is None or batch.ref_hidden is None):
        raise ValueError("the full KL needs the reference's hidden states: batch.ref_hidden and ref_head")
    hidden = model.completion_hidden(batch.prompts, batch.group_ids, batch.completion_ids, batch.lengths)
    exists = batch.existing().to(hidden.device)
    ids = batch.completion_ids.to(hidden.device)[exists]
    ref_hidden = batch.ref_hidden if "full_kl" in needs else None

    def measure(piece: Tensor, piece_ids: Tensor, ref_piece: Tensor | None) -> tuple[Tensor, ...]:
        return _measure(model.logits, piece, piece_ids, needs, temperature, ref_head, ref_piece)

    columns = _in_chunks(measure, hidden, ids, ref_hidden, chunk_tokens or _chunk_tokens(model, hidden))
    laid = [torch.zeros(exists.shape, dtype=c.dtype, device=c.device).masked_scatter(exists, c) for c in columns]
    named = dict(zip(["logprobs", *_ordered(needs)], laid, strict=True))
    return Streams(**named)


def _ordered(needs: frozenset[str]) -> list[str]:
    return sorted(needs & STREAM_NAMES)


def _measure(
    head: Head,
    hidden: Tensor,
    ids: Tensor,
    needs: frozenset[str],
    temperature: float,
    ref_head: Head | None,
    ref_hidden: Tensor | None,
) -> tuple[Tensor, ...]:
    """Log-probs `(n,)` of one chunk, then the needs in alphabetical order."""
    logits = head(hidden)
    measured = [token_logprobs(logits, ids, temperature)]
    if "entropy" in needs:
        measured.append(entropy(logits, temperature))
    if ref_head is not None and ref_hidden is not None:
        with torch.no_grad():
            ref_logits = ref_head(ref_hidden)
        measured.append(full_kl_from_logits(logits, ref_logits, temperature))
    return tuple(measured)


def _in_chunks(
    measure: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, ...]],
    hidden: Tensor,
    ids: Tensor,
    ref_hidden: Tensor | None,
    size: int,
) -> list[Tensor]:
    """`measure` over chunks of `size` tokens, each column concatenated to `(N,)`."""
    pieces = []
    # A single chunk keeps its logits: forgetting them would cost a second product and save nothing at the peak.
    forget = torch.is_grad_enabled() and hidden.shape[0] > size
    for start in range(0, max(hidden.shape[0], 1), size):
        rows = slice(start, start + size)
        arguments = (hidden[rows], ids[rows], None if ref_hidden is None else ref_hidden[rows].to(hidden.device))
        if forget:
            pieces.append(checkpoint(measure, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(measure(*arguments))
    return [torch.cat(column) for column in zip(*pieces, strict=True)]


def _chunk_tokens(model: CausalModel, hidden: Tensor) -> int:
    """How many tokens' logits fill `CHUNK_BYTES` in float32."""
    if hidden.shape[0] and model not in _VOCABULARY:
        with torch.no_grad():  # one row through the head: costly where the vocabulary is large, so once per model
            _VOCABULARY[model] = model.logits(hidden[:1]).shape[-1]
    return max(1, CHUNK_BYTES // (4 * _VOCABULARY.get(model, 1)))
