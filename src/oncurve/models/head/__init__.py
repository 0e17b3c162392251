"""From hidden states to log-probabilities, without logits `(B, T, V)`, and where gradients are kept."""

from oncurve.models.head.gradient_buffers import gradient_dtype, keep_gradient, kept_bytes, kept_gradient
from oncurve.models.head.linear_logprobs import (
    ACCELERATOR_WORKSPACE_BYTES,
    FROZEN_KEPT_BYTES,
    KEPT_BYTES,
    WORKSPACE_BYTES,
)
