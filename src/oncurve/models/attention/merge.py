"""Attention over a part of the keys, and how two parts become the whole.

A softmax over keys A ∪ B is a mixture of the softmaxes over A and over B, weighted by their shares of the denominator:

    out = w · out_A + (1 - w) · out_B,    w = exp(lse_A) / (exp(lse_A) + exp(lse_B)) = σ(lse_A - lse_B)

where lse is the log-sum-exp of the scores. So a decoder attends to the prefix of a group once for
all its rows, and to each row's own tokens by themselves, and never concatenates the two.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
